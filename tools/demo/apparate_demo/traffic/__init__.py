"""Traffic for a model in a cluster: what it is made of, sending it for as long as wanted, what became of it.

`python -m apparate_demo.traffic` has the commands. Every answer is compared with the plain model's on the same bytes.
"""

"""The operator: from EarlyExitModels to what runs in the cluster.

`handlers` hears what changed, `reconciler` looks at one model at a time, `lifecycle` and `manifests` decide (pure),
`cluster` is the only file that calls the Kubernetes API.
"""

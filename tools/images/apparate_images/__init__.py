"""`make images`: the product's images from their Dockerfiles, with an engine when there is one, else by buildah.

`images` says which there are and what each is made from, `base` makes the base image where nothing can be pulled,
`build` runs the Dockerfiles, `archives` writes what a node can load, `sbom` says what is inside.
"""

"""What a model needs in the cluster, as manifests. Pure: values in, plain dicts out; no client, no clock."""

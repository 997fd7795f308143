"""One file a dashboard: what is on it, and in which words."""

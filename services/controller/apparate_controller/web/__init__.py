"""The page for people: static files, no build step, nothing from elsewhere."""

"""The shipped scenarios and the comparison that `apparate demo` runs."""

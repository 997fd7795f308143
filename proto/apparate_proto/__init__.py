"""Generated wire code. Made by `make generate`; never edited."""

"""The controller: reads feedback, decides plans, publishes them."""

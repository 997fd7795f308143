"""Shapes that cross a process border, and their encodings. No sockets, no clients, no behaviour."""

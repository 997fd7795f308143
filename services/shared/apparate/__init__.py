"""Early exits that stay accurate: the method and its contracts.

Rooms, in import order (each may use the ones before it):

* `plan`, `catalog`, `feedback`, `adaptation`: the method. numpy and the standard library, no clock, no log, no I/O.
* `contract`: shapes that cross a process border, and their encodings. No sockets.
* `service`: what every process has: settings, logs, metrics.
* `cli`: the `apparate` command.
"""

__version__ = "0.1.0"

"""What each process has: settings, logs, metrics. Nothing of the method, nothing of one service alone."""

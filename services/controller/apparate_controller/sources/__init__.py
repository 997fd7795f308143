"""Where feedback and heartbeats are read from. Adapters only: nothing here decides."""

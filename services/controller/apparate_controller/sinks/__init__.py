"""Where plans are published. Adapters only: nothing here decides."""

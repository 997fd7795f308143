"""The operator: EarlyExitModels become preparation Jobs, workers and what they need."""

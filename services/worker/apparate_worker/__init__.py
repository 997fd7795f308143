"""The worker: serves one prepared model, releases early answers, reports what its ramps said."""

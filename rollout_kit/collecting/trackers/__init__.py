"""How the figures and the rollouts of a run reach the tools that people already use: W&B, MLflow,
Prometheus, OpenTelemetry. A tracker never holds a collection up, and costs it at most a warning."""

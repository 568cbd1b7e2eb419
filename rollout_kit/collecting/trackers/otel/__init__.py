"""Rollouts as OpenTelemetry traces: from lines to spans, into a file or to a receiver."""

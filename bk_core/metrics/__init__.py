"""Metrics of clients, bookies and streaming queries: counting them, and handing them on as values, to Prometheus and to OpenTelemetry."""

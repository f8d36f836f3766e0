"""The Grafana dashboards, generated from code: `python -m deploy.dashboards` writes their files.

Owns panels, queries, units and places; knows neither the services nor Grafana's server. Invariant: the files
in the repository are what this writes.
"""

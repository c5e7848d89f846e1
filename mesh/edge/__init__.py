"""Envoy before strangers: its resources, its bootstrap, its agent."""

"""Who may ask, and how often.

paths    which scope a path needs, and whether it counts against the rate
keys     API keys and JWT subjects to accounts, through a short cache
tokens   JWTs
rate     requests per minute
admit    the decision about one request
service  Envoy's external authorization
"""

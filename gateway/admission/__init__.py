"""Who may ask, and how often: Envoy's external authorization, one Check for each request.

paths    which scope a path needs, and whether it counts against the rate
keys     API keys and JWT subjects to accounts, through a short cache
tokens   JWTs
rate     requests per minute
service  the contract
"""

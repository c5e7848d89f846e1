"""A turn and its owner. Knows neither HTTP nor gRPC.

run         a turn from first to last
domain      its words
checks      what a request must be
answer      the accounts of one answer
choice      one answer while it is made: generate ‖ screen
feed        from the node to safety
generation  goes on at another node when one breaks
record      the hold before, the settling and the thread after
threads     where a turn is kept
background  work that outlives its request
observe     counts turns as they pass
"""

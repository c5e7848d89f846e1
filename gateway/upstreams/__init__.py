"""The services behind the gateway: stubs to domain, their failures to public reasons.

billing       the hold, the settling, usage, keys
conversation  threads
safety        the veto over prompts and answers
tokenizer     messages to a prompt
inference     one node at a time; `gateway/turn/generation.py` goes on at another
failures      the one table of reasons
"""

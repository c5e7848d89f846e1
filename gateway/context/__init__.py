"""What goes into a prompt: parts in a fixed order, each with a budget of tokens.

parts      the order, the budgets, and what was left out; pure
operator   the operator's system prompt: a checked document and the text for one turn; pure
source     the operator's file, read again when it changes
builder    one turn's context, with what only the tokenizer knows
"""

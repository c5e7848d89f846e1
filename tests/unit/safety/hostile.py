"""What an attacker puts into a text: pieces that wake decoders, rules and recognisers."""

from hypothesis import strategies as st

FRAGMENTS = (
    *("\\ud83d\\ude00", "\\ud83d", "\\ude00", "\\u0041", "\\uDBFF\\uDFFF", "\\u", "\\x41", "0x41"),
    *("&#55357;", "&#xd83d;", "&#x110000;", "&#0;", "&#" + "1" * 40, "&amp;", "&lt", "&#x41;"),
    *("%ed%a0%bd", "%f0%9f%98%80", "%00", "%ff", "aGVsbG8gd29ybGQsIGhlbGxvIQ==", "7aC97bWA7aC9"),
    *(
        "eda0bd",
        "ed a0 bd ",
        "01101000 01100101 ",
        ".- -... ",
        "/ ",
        "h e l l o",
        "b.0.m.b",
        "l33t",
    ),
    *("\u0315\u0300", "\u0f73\u0300", "\u0301", "\u200b", "\ufeff", "\U000e0041", "\U0001d400"),
    *("\ufdfa", "\u0130", "\ufb01", "\u1100\u1161", "\U0001f600", "é", "е", "²", "٤", "１", "中"),
    *("4111 1111 ", "(415) 555-2671, ", "+1 415 ", "+999 123 4567890 ", "536-22-1234 ", "8.8.8.8"),
    *("GB82 WEST ", "12 Main ", "PO Box ", "Street ", "a@b.de", "a@", "2001:", "::", "call me on "),
    *(
        "password=",
        "sk-",
        "AKIA",
        "-----BEGIN RSA PRIVATE KEY-----\n",
        "Ab1",
        "=",
        "--",
        "version ",
    ),
    *("how to ", "make a ", "pipe bomb", "bath ", "ignore all ", "you ", "the ", ". ", "! ", "\n"),
    *(
        " ",
        "  ",
        "   ",
        "\t",
        "\x00",
        "\x1c",
        "a",
        "A",
        "1",
        "_",
        "-",
        "/",
        ":",
        ",",
        "'",
        "’",
        "$",
    ),
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=24).map("".join)
# What is said again and again.
UNITS = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=3).map("".join)

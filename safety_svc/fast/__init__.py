"""What is asked of every look at every answer, in C++: each part does what its Python twin does.

    make (build.py) ──g++──> build/fast/…/libfast.so <──ctypes── library.py

    cpp/features.h     classifier/features.py, linear.py    hashed n-grams, the sum of their weights
    cpp/plain.h        classifier/normalise.py, encodings.py    "is plain, has no other readings"
    cpp/wordpiece.h    the tokenizer of the encoder, for ASCII

Where the library is missing the twins serve alone, with the same results bit for bit.
"""

"""The CPU back end in C++: one call is one engine step.

    make (build.py) ──g++──> build/kernels/…/libkernels.so <──ctypes── library.py <── backend.py

Nothing is compiled when a service starts; where the library is missing, `unavailable_reason` says
why and the plain torch back end serves.
"""

"""The image that measurements run in: what is built, how, and the proof that it has Apex's kernels.

``recipe`` says what is built, ``preflight`` refuses what cannot work before minutes are spent,
``build`` builds and describes it, ``inside`` is what the Dockerfile and ``make apex`` run. What
runs inside a base (``inside`` and all it imports) uses the standard library alone.
"""

"""Deep checks: programs that put a node under load and compare what it computes, stores and sends with known answers.

Each runs in a process of its own, started by the agent at the lowest priority and killed at once when a job comes. They
print one line of JSON for each test (``result.Line``) and need nothing but Python; PyTorch is used where it is there.
"""

"""``apexbench selfcheck``: does this machine measure well enough for its verdicts to be believed?

Every proof is an ordinary case, measured by the ordinary code in the ordinary processes, whose
answer is known beforehand: an operation compared with itself, with a little more of itself, with a
planted fault, or with a wait of known length. ``proofs`` reads the records and says what held.
"""

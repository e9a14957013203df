"""Says how much memory a job takes on a device, before anything runs: python plan.py job.yaml rtx-4090"""
import sys

import plimsoll

plan = plimsoll.plan(sys.argv[1], device=sys.argv[2] if len(sys.argv) > 2 else None)
print(plan)
for remedy in plan.remedies: print("would fit with", remedy)

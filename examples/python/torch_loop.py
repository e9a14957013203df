"""Gradient accumulation and memory checks around a PyTorch model of one's own."""
import torch

import plimsoll

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
acc = plimsoll.GradientAccumulator(model, optimizer, effective_batch=64, micro_batch=8)
monitor = plimsoll.MemoryMonitor(silent_mode=True)
torch.manual_seed(0)
data, target = torch.randn(512, 32), torch.randint(0, 4, (512,))
for i in range(0, 512, 8):
    loss = torch.nn.functional.cross_entropy(model(data[i:i + 8]), target[i:i + 8])
    if acc.backward(loss):  # an optimizer step was taken
        print(f"step {acc.steps_taken}: loss {loss.item():.3f}, memory {monitor.check_memory_health(batch_size=8)['status']}")

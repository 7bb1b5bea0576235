"""The multiprocessors' clock and the power of torch's GPU while something runs."""

import statistics
import threading
import time

import torch


class Meter:
    """Clock and power, twenty times a second."""

    def __init__(self):
        import pynvml

        pynvml.nvmlInit()
        # By its name: which of a machine's GPUs is torch's is for the environment to say.
        uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        self.samples = []

        def sample():
            while True:
                clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
                self.samples.append((time.perf_counter(), clock, pynvml.nvmlDeviceGetPowerUsage(handle) / 1000))
                time.sleep(0.05)

        threading.Thread(target=sample, daemon=True).start()

    def between(self, begin, end):
        seen = [s for s in self.samples if begin <= s[0] <= end] or self.samples[-1:]
        return statistics.mean(s[1] for s in seen), statistics.mean(s[2] for s in seen)

// SIGTERM, by which schedulers end a job: `hotswap train` finishes its update, writes a checkpoint and exits with 143.
#pragma once

#include "hotswap/training/trainer_parts.h"

namespace hotswap {

class StopOnSignal : public TrainerCallback {
 public:
  StopOnSignal();            // SIGTERM is only noted from now on
  ~StopOnSignal() override;  // and ends the process again
  void on_step_end(const TrainerEvent& event) override;
};

}  // namespace hotswap

// Owns penalties and the choice of one token per row of logits on a CPU; keeps nothing between calls.
//
// The meaning is sampler/sampler.py: greedy rows take the largest logit (of equal ones the lowest
// id), others temperature, top-k, top-p, min-p, in this order, and then one number of (seed,
// position) inverts the distribution of what is kept, in the order of ids.
#pragma once

#include "kernels.h"

namespace mizzen {

enum class ChoiceKind : int64_t { kGreedy = 0, kPlain = 1, kFiltered = 2 };

// One entry per row.
struct Choice {
  const float* logits;
  int64_t stride;  // floats from row to row
  int64_t vocab_size;
  int64_t num_rows;
  const ChoiceKind* kinds;
  const float* temperatures;
  const int64_t* top_k;  // 0: no limit
  const float* top_p;
  const float* min_p;
  const int64_t* seeds;
  const int64_t* positions;
  int64_t* tokens;     // 0 where the row is not valid
  uint8_t* is_valid;   // the largest logit is finite and none is NaN
};

// Rows whose tokens so far count; one entry per row.
struct Penalties {
  float* logits;
  int64_t stride;
  int64_t vocab_size;
  int64_t num_rows;
  const int64_t* rows;        // of the logits
  const int64_t* tally_rows;  // of the tallies
  const int32_t* tallies;     // [any][vocab_size]: 2 * count in the output + 1 where the prompt has it
  const float* repetition;    // 1: none
  const float* frequency;
  const float* presence;
};

// In place; the meaning is sampler/adjustments.py.
void penalise_rows(const Kernels& kernels, const Penalties& penalties);

// Throws std::bad_alloc.
void choose_tokens(const Kernels& kernels, const Choice& choice);

}  // namespace mizzen

// Owns the choice of tokens; see sampling.h.
#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

namespace mizzen {

namespace {

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

// As sampler/counter_random.py, which says why.
double uniform(int64_t seed, int64_t position) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
  const uint64_t keyed = mix(static_cast<uint64_t>(seed) + kGolden);
  const uint64_t mixed =
      mix(keyed ^ (static_cast<uint64_t>(position) * kGolden + 0xbf58476d1ce4e5b9ull));
  return static_cast<double>(mixed >> 11) * 0x1.0p-53;
}

// A share of the total, always below it.
double target_of(double uniform, double total) {
  return std::min(uniform * total, std::nextafter(total, 0.0));
}

// Candidates as whole numbers that sort by logit and then by the lower id, the best one largest.
uint64_t pack(float logit, uint32_t id) {
  logit += 0.0f;  // minus zero equals zero
  uint32_t bits;
  std::memcpy(&bits, &logit, 4);
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - id);
}

float logit_of(uint64_t candidate) {
  const uint32_t ordered = static_cast<uint32_t>(candidate >> 32);
  const uint32_t bits = ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered;
  float logit;
  std::memcpy(&logit, &bits, 4);
  return logit;
}

int64_t id_of(uint64_t candidate) { return 0xffffffffu - static_cast<uint32_t>(candidate); }

class Chooser {
 public:
  Chooser(const Kernels& kernels, const Choice& choice)
      : kernels_(kernels),
        choice_(choice),
        num_blocks_((choice.vocab_size + kSampleBlock - 1) / kSampleBlock),
        maxima_(num_blocks_),
        ends_(num_blocks_) {}

  void choose(int64_t row) {
    row_ = row;
    logits_ = choice_.logits + row * choice_.stride;
    const bool has_nan = kernels_.block_maxima(logits_, choice_.vocab_size, maxima_.data());
    largest_ = *std::max_element(maxima_.begin(), maxima_.end());
    choice_.is_valid[row] = !has_nan && std::isfinite(largest_);
    choice_.tokens[row] = choice_.is_valid[row] ? choose_valid() : 0;
  }

 private:
  int64_t choose_valid() {
    switch (choice_.kinds[row_]) {
      case ChoiceKind::kGreedy: return choose_greedy();
      case ChoiceKind::kPlain: return choose_plain();
      case ChoiceKind::kFiltered: return choose_filtered();
    }
    return 0;
  }

  int64_t block_size(int64_t block) const {
    return std::min<int64_t>(kSampleBlock, choice_.vocab_size - block * kSampleBlock);
  }

  int64_t choose_greedy() const {
    const int64_t block = std::find(maxima_.begin(), maxima_.end(), largest_) - maxima_.begin();
    const float* first = logits_ + block * kSampleBlock;
    return std::find(first, first + block_size(block), largest_) - logits_;
  }

  // Cumulative weights at the end of each block; returns their total.
  double sum_weights() {
    double total = 0;
    for (int64_t block = 0; block < num_blocks_; ++block) {
      total += kernels_.block_weights(logits_ + block * kSampleBlock, block_size(block), largest_,
                                      choice_.temperatures[row_], weights_);
      ends_[block] = total;
    }
    return total;
  }

  int64_t choose_plain() {
    const double target = target_of(drawn(), sum_weights());
    const int64_t block = std::upper_bound(ends_.begin(), ends_.end(), target) - ends_.begin();
    const int64_t size = block_size(block);
    kernels_.block_weights(logits_ + block * kSampleBlock, size, largest_,
                           choice_.temperatures[row_], weights_);
    // The block's sum and this one may differ in their last bits: stay on a column with weight.
    double cumulative = block == 0 ? 0 : ends_[block - 1];
    int64_t chosen = 0;
    for (int64_t i = 0; i < size; ++i) {
      if (weights_[i] == 0) continue;
      chosen = i;
      cumulative += weights_[i];
      if (cumulative > target) break;
    }
    return block * kSampleBlock + chosen;
  }

  double drawn() const { return uniform(choice_.seeds[row_], choice_.positions[row_]); }

  // A logit below which no token is kept: cheap, and low enough whatever rounding does.
  float lowest_kept(double total) {
    const double temperature = choice_.temperatures[row_];
    const double slack = 0.01 * temperature + 1e-6 * std::fabs(largest_);
    double lowest = -std::numeric_limits<double>::infinity();
    const int64_t top_k = choice_.top_k[row_];
    if (top_k > 0 && top_k <= num_blocks_) {
      // As many blocks reach the k-th largest maximum, so at least k tokens do.
      std::copy(maxima_.begin(), maxima_.end(), sorted_maxima());
      std::nth_element(sorted_.begin(), sorted_.begin() + top_k - 1, sorted_.end(),
                       std::greater<float>());
      lowest = sorted_[top_k - 1];
    }
    const double top_p = choice_.top_p[row_], min_p = choice_.min_p[row_];
    if (top_k == 0 && top_p < 1) {
      // All tokens below this share together are less than what top-p leaves out.
      const double share = (1 - top_p) * total / static_cast<double>(choice_.vocab_size);
      lowest = std::max(lowest, largest_ + temperature * std::log(share) - slack);
    }
    // Where top-p follows a top-k, the mass it refers to includes tokens that min-p drops.
    const bool is_mass_known = top_k == 0 || top_p >= 1;
    if (min_p > 0 && is_mass_known) lowest = std::max(lowest, largest_ + temperature * std::log(min_p) - slack);
    // Rounding to float must not raise it.
    return std::nextafter(static_cast<float>(lowest), -std::numeric_limits<float>::infinity());
  }

  std::vector<float>::iterator sorted_maxima() {
    sorted_.resize(num_blocks_);
    return sorted_.begin();
  }

  void collect(float lowest) {
    candidates_.clear();
    for (int64_t block = 0; block < num_blocks_; ++block) {
      if (!(maxima_[block] >= lowest)) continue;
      const int64_t first = block * kSampleBlock;
      for (int64_t i = first; i < first + block_size(block); ++i) {
        if (logits_[i] >= lowest) candidates_.push_back(pack(logits_[i], static_cast<uint32_t>(i)));
      }
    }
  }

  // Put the best `count` candidates in order behind those that already are.
  void sort_up_to(size_t count) {
    count = std::min(count, candidates_.size());
    if (count <= num_sorted_) return;
    const auto first = candidates_.begin() + num_sorted_, after = candidates_.begin() + count;
    if (after < candidates_.end()) {
      std::nth_element(first, after, candidates_.end(), std::greater<uint64_t>());
    }
    std::sort(first, after, std::greater<uint64_t>());
    num_sorted_ = count;
  }

  double weight_of(uint64_t candidate) const {
    const double shifted = logit_of(candidate) - largest_;
    return std::exp(shifted / static_cast<double>(choice_.temperatures[row_]));
  }

  int64_t choose_filtered() {
    const int64_t top_k = choice_.top_k[row_];
    const double top_p = choice_.top_p[row_], min_p = choice_.min_p[row_];
    double mass = top_k == 0 && top_p < 1 ? sum_weights() : 0;
    collect(lowest_kept(mass));
    num_sorted_ = 0;
    size_t limit = candidates_.size();
    if (top_k > 0) {
      limit = std::min(limit, static_cast<size_t>(top_k));
      sort_up_to(limit);
      for (size_t i = 0; i < limit; ++i) mass += weight_of(candidates_[i]);
    }
    kept_.clear();
    double kept = 0;
    for (size_t i = 0; i < limit; ++i) {
      if (i == num_sorted_) sort_up_to(std::max<size_t>(64, 4 * i));
      const double weight = weight_of(candidates_[i]);
      const bool is_first = i == 0;
      if (!is_first && (weight < min_p || (top_p < 1 && !(kept < top_p * mass)))) break;
      kept += weight;
      kept_.push_back({id_of(candidates_[i]), weight});
    }
    return invert_kept();
  }

  // By id, as where nothing is filtered.
  int64_t invert_kept() {
    std::sort(kept_.begin(), kept_.end(), [](const Kept& a, const Kept& b) { return a.id < b.id; });
    double total = 0;
    for (Kept& token : kept_) token.end = total += token.end;
    const double target = target_of(drawn(), total);
    const auto chosen = std::find_if(kept_.begin(), kept_.end(),
                                     [target](const Kept& token) { return token.end > target; });
    return chosen->id;
  }

  struct Kept {
    int64_t id;
    double end;  // its weight, then the sum up to its end
  };

  const Kernels& kernels_;
  const Choice& choice_;
  const int64_t num_blocks_;
  int64_t row_ = 0;
  const float* logits_ = nullptr;
  float largest_ = 0;
  float weights_[kSampleBlock];
  std::vector<float> maxima_, sorted_;
  std::vector<double> ends_;
  std::vector<Kept> kept_;
  std::vector<uint64_t> candidates_;
  size_t num_sorted_ = 0;
};

}  // namespace

void penalise_rows(const Kernels& kernels, const Penalties& penalties) {
  for (int64_t i = 0; i < penalties.num_rows; ++i) {
    kernels.penalise(penalties.logits + penalties.rows[i] * penalties.stride,
                     penalties.tallies + penalties.tally_rows[i] * penalties.vocab_size,
                     penalties.vocab_size, penalties.repetition[i], penalties.frequency[i],
                     penalties.presence[i]);
  }
}

void choose_tokens(const Kernels& kernels, const Choice& choice) {
  Chooser chooser(kernels, choice);
  for (int64_t row = 0; row < choice.num_rows; ++row) chooser.choose(row);
}

}  // namespace mizzen

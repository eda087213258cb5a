// Owns a recorded forward: operations over row buffers, run whole by one call for any number of
// tokens. It owns its buffers and threads; weights, pool and step tensors belong to the caller.
//
// layers/native_operations.py records programs; the meaning of each operation is in kernels/reference.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "crew.h"
#include "kernels.h"

namespace mizzen {

enum class Opcode : int64_t { kEmbed = 0, kLinear = 1, kRotaryStore = 2, kAttend = 3, kSelect = 4 };
enum class Prologue : int64_t { kPlain = 0, kNorm = 1, kSiluMultiply = 2 };

// Fields by opcode; buffers are indices, `weight` an index of the weight table.
//   kEmbed        weight, output
//   kLinear       prologue, input, norm pointer, weight, output (-1: logits), is_added, is_sampled
//   kRotaryStore  qkv, layer, query norm pointer, key norm pointer (0: heads have no norm)
//   kAttend       qkv, output, layer, window (0: every earlier position is seen)
//   kSelect       input, output
struct Operation {
  Opcode code;
  int64_t fields[7];
};

struct Layer {
  void* keys;
  void* values;
};

struct Settings {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t page_size;
  int64_t is_bfloat16;
  const float* rotary_table;  // [context][2][head_dim / 2]
  double eps;
};

struct Step {
  const int64_t* token_ids;
  const int64_t* positions;
  const int64_t* kv_locations;
  const int32_t* page_table;
  int64_t max_pages;
  const int64_t* row_slots;
  const int64_t* sampled_tokens;
  const int32_t* row_starts;
  const int32_t* row_lengths;
  int64_t num_tokens;
  int64_t num_rows;
  int64_t num_sampled;
  float* logits;  // [num_sampled][outputs of the head rounded up to 16]
};

class Program {
 public:
  Program(const Kernels* kernels, const Settings& settings, std::vector<Layer> layers,
          std::vector<Weight> weights, std::vector<int64_t> buffer_widths,
          std::vector<Operation> operations, int num_threads);

  void run(const Step& step);

  // The same in parts, for a caller that has something to do between operations: `start`, then
  // `run_operations` for every range [first, after) in order.
  void start(const Step& step);
  void run_operations(int64_t first, int64_t after);

  int64_t num_operations() const { return static_cast<int64_t>(operations_.size()); }
  int64_t num_buffers() const { return static_cast<int64_t>(buffers_.size()); }
  // Floats from one row of a buffer to the next.
  int64_t stride(int64_t buffer) const { return strides_[buffer]; }
  // Rows that every buffer has; they move when a step of more tokens starts.
  int64_t num_rows() const { return capacity_; }
  float* rows(int64_t buffer) { return buffers_[buffer].data(); }

 private:
  static constexpr int64_t kPrivateRows = 2;

  struct ActivationMemory {
    std::vector<int32_t> first_plane, second_plane, initial;
    std::vector<float> scales, scaled_sums, dense;
    void reserve(int64_t rows, int64_t columns, bool has_dense);
    Activations view(const Weight& weight);
  };
  struct Member {
    ActivationMemory activations;
    std::vector<float> row;
    std::vector<float> attention;
  };

  float* buffer_row(int64_t buffer, int64_t row) {
    return buffers_[buffer].data() + row * strides_[buffer];
  }
  void reserve_rows(int64_t num_tokens);
  // What one step's attention does for the layers of one window.
  struct AttentionPlan {
    int64_t window;
    std::vector<AttentionItem> items;
  };

  void plan_attention();
  void plan_row(AttentionPlan& plan, int32_t row);
  AttentionPlan& plan_of(int64_t window);
  void run_member(int member, int64_t first, int64_t after);
  void embed(const Operation& op, std::atomic<int64_t>* counters);
  void linear(const Operation& op, std::atomic<int64_t>* counters, int member);
  void prepare_row(const Operation& op, const Activations& act, int64_t row, int member);
  void rotary_store(const Operation& op, std::atomic<int64_t>* counters);
  void attend(const Operation& op, std::atomic<int64_t>* counters, int member);
  void merge_splits(const AttentionItem& item, float* output_row);
  void select(const Operation& op, std::atomic<int64_t>* counters);

  const Kernels* kernels_;
  Settings settings_;
  std::vector<Layer> layers_;
  std::vector<Weight> weights_;
  std::vector<int64_t> strides_;
  std::vector<Operation> operations_;
  std::vector<std::vector<float>> buffers_;
  int64_t capacity_ = 0;
  int64_t max_columns_ = 0;
  bool has_dense_ = false;
  ActivationMemory shared_;
  std::vector<Member> members_;
  std::unique_ptr<std::atomic<int64_t>[]> counters_;  // two per operation
  std::vector<AttentionPlan> plans_;  // one per window that the program uses
  std::vector<float> partials_;
  std::unique_ptr<std::atomic<int32_t>[]> finished_splits_;  // [rows][kv heads]
  int64_t finished_splits_size_ = 0;
  int64_t max_splits_ = 1;
  Step step_{};
  Crew crew_;
};

}  // namespace mizzen

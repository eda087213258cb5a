// Owns the running of a program; see program.h. Work inside a phase is handed out by a counter, so
// that a member that was delayed takes less of it.
#include "program.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace mizzen {

namespace {

// Call body(first, after) for ranges of [0, total) until the counter has passed the end.
template <typename Body>
void share(std::atomic<int64_t>& counter, int64_t total, int64_t chunk, const Body& body) {
  while (true) {
    const int64_t first = counter.fetch_add(chunk);
    if (first >= total) return;
    body(first, std::min(first + chunk, total));
  }
}

int64_t chunk_of(int64_t total, int members) {
  return std::max<int64_t>(1, total / (members * 6));
}

}  // namespace

void Program::ActivationMemory::reserve(int64_t rows, int64_t columns, bool has_dense) {
  first_plane.resize(rows * columns / 4);
  second_plane.resize(rows * columns / 4);
  const int64_t blocks = rows * ((columns + 15) / 16);
  initial.resize(blocks);
  scales.resize(blocks);
  scaled_sums.resize(blocks);
  if (has_dense) dense.resize(rows * columns);
}

Activations Program::ActivationMemory::view(const Weight& weight) {
  const int64_t blocks = weight.storage == Storage::kQuantised ? weight.blocks() : 0;
  return {first_plane.data(), second_plane.data(), scales.data(),  scaled_sums.data(),
          initial.data(),     dense.data(),        weight.columns / 4, blocks, weight.columns};
}

Program::Program(const Kernels* kernels, const Settings& settings, std::vector<Layer> layers,
                 std::vector<Weight> weights, std::vector<int64_t> buffer_widths,
                 std::vector<Operation> operations, int num_threads)
    : kernels_(kernels),
      settings_(settings),
      layers_(std::move(layers)),
      weights_(std::move(weights)),
      operations_(std::move(operations)),
      buffers_(buffer_widths.size()),
      members_(num_threads),
      counters_(new std::atomic<int64_t>[operations_.size() * 2]),
      crew_(num_threads) {
  for (const int64_t width : buffer_widths) strides_.push_back((width + 15) / 16 * 16);
  for (const Weight& weight : weights_) {
    max_columns_ = std::max(max_columns_, weight.columns);
    has_dense_ = has_dense_ || weight.storage != Storage::kQuantised;
  }
  for (const Operation& op : operations_) {
    if (op.code == Opcode::kAttend) plan_of(op.fields[3]);
  }
  const int64_t group = settings_.num_heads / settings_.num_kv_heads;
  for (Member& member : members_) {
    member.activations.reserve(kPrivateRows, max_columns_, has_dense_);
    member.row.resize(max_columns_);
    member.attention.resize(attention_scratch_floats(group, settings_.head_dim));
  }
}

void Program::reserve_rows(int64_t num_tokens) {
  if (num_tokens <= capacity_) return;
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].resize(num_tokens * strides_[i]);
  shared_.reserve(num_tokens, max_columns_, has_dense_);
  capacity_ = num_tokens;
}

Program::AttentionPlan& Program::plan_of(int64_t window) {
  const int64_t reach = window > 0 ? window : std::numeric_limits<int64_t>::max();
  for (AttentionPlan& plan : plans_) {
    if (plan.window == reach) return plan;
  }
  return plans_.emplace_back(AttentionPlan{reach, {}});
}

// Only a row's single token is split, at whole blocks: one item would leave the crew idle.
void Program::plan_row(AttentionPlan& plan, int32_t row) {
  const int32_t first = step_.row_starts[row], after = step_.row_starts[row + 1];
  const int64_t tile = tokens_per_item(settings_.num_heads / settings_.num_kv_heads);
  for (int32_t head = 0; head < settings_.num_kv_heads; ++head) {
    for (int32_t token = first; token < after; token += static_cast<int32_t>(tile)) {
      const int32_t count = std::min(static_cast<int32_t>(tile), after - token);
      const int64_t begin = std::max<int64_t>(0, step_.positions[token] + 1 - plan.window);
      const int64_t end = step_.positions[token + count - 1] + 1;
      const int64_t first_block = begin / kKeyBlock;
      const int64_t blocks = (end + kKeyBlock - 1) / kKeyBlock - first_block;
      const int64_t splits = after - first == 1 ? blocks : 1;
      max_splits_ = std::max(max_splits_, splits);
      for (int64_t split = 0; split < splits; ++split) {
        const int64_t from = std::max(begin, (first_block + split) * kKeyBlock);
        const int64_t to = splits == 1 ? end : std::min(end, (first_block + split + 1) * kKeyBlock);
        plan.items.push_back({row, token, count, head, static_cast<int32_t>(from),
                              static_cast<int32_t>(to), static_cast<int32_t>(split),
                              static_cast<int32_t>(splits)});
      }
    }
  }
}

void Program::plan_attention() {
  max_splits_ = 1;
  for (AttentionPlan& plan : plans_) {
    plan.items.clear();
    for (int32_t row = 0; row < step_.num_rows; ++row) plan_row(plan, row);
  }
  const int64_t group = settings_.num_heads / settings_.num_kv_heads;
  if (max_splits_ == 1) return;
  const int64_t pairs = step_.num_rows * settings_.num_kv_heads;
  partials_.resize(pairs * max_splits_ * group * (settings_.head_dim + 2));
  if (pairs > finished_splits_size_) {
    finished_splits_.reset(new std::atomic<int32_t>[pairs]);
    finished_splits_size_ = pairs;
  }
  for (int64_t i = 0; i < pairs; ++i) finished_splits_[i] = 0;
}

void Program::run(const Step& step) {
  start(step);
  run_operations(0, num_operations());
}

void Program::start(const Step& step) {
  step_ = step;
  reserve_rows(std::max(step.num_tokens, step.num_sampled));
  plan_attention();
  for (size_t i = 0; i < operations_.size() * 2; ++i) counters_[i] = 0;
}

void Program::run_operations(int64_t first, int64_t after) {
  crew_.run([=, this](int member) { run_member(member, first, after); });
}

void Program::run_member(int member, int64_t first, int64_t after) {
  for (int64_t i = first; i < after; ++i) {
    const Operation& op = operations_[i];
    std::atomic<int64_t>* counters = &counters_[2 * i];
    switch (op.code) {
      case Opcode::kEmbed: embed(op, counters); break;
      case Opcode::kLinear: linear(op, counters, member); break;
      case Opcode::kRotaryStore: rotary_store(op, counters); break;
      case Opcode::kAttend: attend(op, counters, member); break;
      case Opcode::kSelect: select(op, counters); break;
    }
    crew_.barrier();
  }
}

void Program::embed(const Operation& op, std::atomic<int64_t>* counters) {
  const Weight& weight = weights_[op.fields[0]];
  share(counters[0], step_.num_tokens, 1, [&](int64_t first, int64_t) {
    kernels_->embed_row(weight, step_.token_ids[first], buffer_row(op.fields[1], first));
  });
}

void Program::prepare_row(const Operation& op, const Activations& act, int64_t row, int member) {
  const Weight& weight = weights_[op.fields[3]];
  const float* input = buffer_row(op.fields[1], row);
  const bool is_dense = weight.storage != Storage::kQuantised;
  float* target = is_dense ? act.dense + row * act.columns : members_[member].row.data();
  switch (static_cast<Prologue>(op.fields[0])) {
    case Prologue::kPlain:
      if (is_dense) std::memcpy(target, input, weight.columns * sizeof(float));
      break;
    case Prologue::kNorm:
      kernels_->rms_norm(input, reinterpret_cast<const float*>(op.fields[2]),
                         static_cast<float>(settings_.eps), weight.columns, target);
      input = target;
      break;
    case Prologue::kSiluMultiply:
      kernels_->silu_multiply(input, input + weight.columns, weight.columns, target);
      input = target;
      break;
  }
  if (!is_dense) kernels_->quantise_row(input, weight, act, row);
}

void Program::linear(const Operation& op, std::atomic<int64_t>* counters, int member) {
  const Weight& weight = weights_[op.fields[3]];
  const int64_t rows = op.fields[6] ? step_.num_sampled : step_.num_tokens;
  if (rows == 0) return;
  const bool is_private = rows <= kPrivateRows;
  const Activations act =
      (is_private ? members_[member].activations : shared_).view(weight);
  if (is_private) {
    for (int64_t row = 0; row < rows; ++row) prepare_row(op, act, row, member);
  } else {
    share(counters[0], rows, chunk_of(rows, crew_.size()), [&](int64_t first, int64_t after) {
      for (int64_t row = first; row < after; ++row) prepare_row(op, act, row, member);
    });
    crew_.barrier();
  }
  const bool is_logits = op.fields[4] < 0;
  float* output = is_logits ? step_.logits : buffer_row(op.fields[4], 0);
  const int64_t stride = is_logits ? weight.tiles() * kLanes : strides_[op.fields[4]];
  constexpr int64_t kRowsAtOnce = 32;
  share(counters[1], weight.tiles(), chunk_of(weight.tiles(), crew_.size()),
        [&](int64_t first, int64_t after) {
          for (int64_t row = 0; row < rows; row += kRowsAtOnce) {
            const int64_t count = std::min(kRowsAtOnce, rows - row);
            for (int64_t tile = first; tile < after; ++tile) {
              kernels_->linear_tile(weight, act, row, count, tile,
                                    output + row * stride + tile * kLanes, stride,
                                    op.fields[5] != 0);
            }
          }
        });
}

void Program::rotary_store(const Operation& op, std::atomic<int64_t>* counters) {
  const Layer& layer = layers_[op.fields[1]];
  const int64_t head_dim = settings_.head_dim;
  const int64_t kv_size = settings_.num_kv_heads * head_dim;
  const int64_t item_bytes = settings_.is_bfloat16 ? 2 : 4;
  const float* query_norm = reinterpret_cast<const float*>(op.fields[2]);
  const float* key_norm = reinterpret_cast<const float*>(op.fields[3]);
  const float eps = static_cast<float>(settings_.eps);
  share(counters[0], step_.num_tokens, chunk_of(step_.num_tokens, crew_.size()),
        [&](int64_t first, int64_t after) {
          for (int64_t token = first; token < after; ++token) {
            float* heads = buffer_row(op.fields[0], token);
            const float* cosines = settings_.rotary_table + step_.positions[token] * head_dim;
            const int64_t rotated = settings_.num_heads + settings_.num_kv_heads;
            for (int64_t head = 0; head < rotated; ++head) {
              float* values = heads + head * head_dim;
              const float* norm = head < settings_.num_heads ? query_norm : key_norm;
              if (norm != nullptr) kernels_->rms_norm(values, norm, eps, head_dim, values);
              kernels_->rotate(values, cosines, cosines + head_dim / 2, head_dim);
            }
            const int64_t offset = step_.kv_locations[token] * kv_size * item_bytes;
            const float* keys = heads + settings_.num_heads * head_dim;
            kernels_->store_kv(keys, static_cast<char*>(layer.keys) + offset,
                               settings_.is_bfloat16, kv_size);
            kernels_->store_kv(keys + kv_size, static_cast<char*>(layer.values) + offset,
                               settings_.is_bfloat16, kv_size);
          }
        });
}

void Program::attend(const Operation& op, std::atomic<int64_t>* counters, int member) {
  const Layer& layer = layers_[op.fields[2]];
  const int64_t group = settings_.num_heads / settings_.num_kv_heads;
  const int64_t partial_size = group * (settings_.head_dim + 2);
  AttentionInput input{};
  input.queries = buffer_row(op.fields[0], 0);
  input.query_stride = strides_[op.fields[0]];
  input.output = buffer_row(op.fields[1], 0);
  input.output_stride = strides_[op.fields[1]];
  input.keys = layer.keys;
  input.values = layer.values;
  input.is_bfloat16 = settings_.is_bfloat16 != 0;
  input.positions = step_.positions;
  input.page_size = settings_.page_size;
  input.kv_heads = settings_.num_kv_heads;
  input.head_dim = settings_.head_dim;
  input.group = group;
  input.scratch = members_[member].attention.data();
  const AttentionPlan& plan = plan_of(op.fields[3]);
  input.window = plan.window;
  share(counters[0], static_cast<int64_t>(plan.items.size()), 1, [&](int64_t index, int64_t) {
    const AttentionItem& item = plan.items[index];
    input.pages = step_.page_table + step_.row_slots[item.row] * step_.max_pages;
    const int64_t pair = item.row * settings_.num_kv_heads + item.kv_head;
    if (item.num_splits > 1) {
      input.partial = partials_.data() + (pair * max_splits_ + item.split) * partial_size;
    }
    kernels_->attend(item, input);
    if (item.num_splits > 1 && finished_splits_[pair].fetch_add(1) + 1 == item.num_splits) {
      finished_splits_[pair] = 0;
      merge_splits(item, buffer_row(op.fields[1], item.first_token));
    }
  });
}

// Runs on the member that finished a pair's last split, always in the order of the splits.
void Program::merge_splits(const AttentionItem& item, float* output_row) {
  const int64_t head_dim = settings_.head_dim;
  const int64_t group = settings_.num_heads / settings_.num_kv_heads;
  const int64_t pair = item.row * settings_.num_kv_heads + item.kv_head;
  const int64_t query_size = head_dim + 2;
  float* splits = partials_.data() + pair * max_splits_ * group * query_size;
  for (int64_t q = 0; q < group; ++q) {
    kernels_->merge_splits(splits + q * query_size, group * query_size, item.num_splits, head_dim,
                           output_row + (item.kv_head * group + q) * head_dim);
  }
}

void Program::select(const Operation& op, std::atomic<int64_t>* counters) {
  share(counters[0], step_.num_sampled, 1, [&](int64_t row, int64_t) {
    std::memcpy(buffer_row(op.fields[1], row),
                buffer_row(op.fields[0], step_.sampled_tokens[row]),
                strides_[op.fields[0]] * sizeof(float));
  });
}

}  // namespace mizzen

// Owns the types shared by the native kernels and the table of functions that each instruction set
// fills; computes nothing.
//
// Weights of a linear layer are packed in tiles of 16 outputs, so that one SIMD lane is one output.
// A quantised tile is a sequence of records, one per block of `block` columns:
//
//   codes    block/4 groups of 4 columns; a group is 16 lanes x 4 codes (64 codes). 8-bit codes:
//            64 bytes per group. 4-bit codes: two groups share 64 bytes (low and high nibbles).
//   scales   16 values, float16 or float32
//   minimums 16 values of the same type, only when the format has them
//
// A dense tile is [columns][16] of float32, bfloat16 or float16.
//
// Activations are quantised per row and block to 16-bit integers X (|X| <= 32512):
// value = scale * X. They are kept as two planes of one int32 per group of 4 columns, in the form
// that the instruction set multiplies fastest (see `Planes` in the .inc files). Products with 4- or
// 8-bit codes are summed exactly in 32-bit integers: results do not depend on the order of columns
// inside a block, and every row is computed alike whatever rows are beside it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mizzen {

constexpr int kLanes = 16;
constexpr int64_t kSampleBlock = 64;

enum class Storage : int64_t { kQuantised = 0, kFloat32 = 1, kBfloat16 = 2, kFloat16 = 3 };

struct Weight {
  const uint8_t* data;
  Storage storage;
  int64_t outputs;
  int64_t columns;
  int64_t bits;
  int64_t block;
  int64_t half_scales;
  int64_t has_minimums;
  int64_t offset;  // subtracted from every code (symmetric formats)
  const float* bias;  // [tiles() * 16] added to the outputs, or nullptr

  int64_t tiles() const { return (outputs + kLanes - 1) / kLanes; }
  int64_t blocks() const { return columns / block; }
  int64_t record_bytes() const {
    return block * kLanes * bits / 8 +
           kLanes * (half_scales ? 2 : 4) * (has_minimums ? 2 : 1);
  }
  int64_t tile_bytes() const {
    if (storage == Storage::kQuantised) return blocks() * record_bytes();
    return columns * kLanes * (storage == Storage::kFloat32 ? 4 : 2);
  }
};

// Rows of activations ready for a linear layer; row r of an array starts at r * its stride.
struct Activations {
  int32_t* first_plane;   // [rows][columns / 4]
  int32_t* second_plane;  // [rows][columns / 4]
  float* scales;          // [rows][blocks]
  float* scaled_sums;     // [rows][blocks]: scale * sum of X
  int32_t* initial;       // [rows][blocks]: -offset * sum of X
  float* dense;           // [rows][columns], for dense weights
  int64_t groups;
  int64_t blocks;
  int64_t columns;
};

// One piece of attention: some neighbouring tokens of one row, one KV head, a range of keys. With
// several splits there is one token, and the range lies inside one block of kKeyBlock keys.
struct AttentionItem {
  int32_t row;
  int32_t first_token;
  int32_t num_tokens;
  int32_t kv_head;
  int32_t first_key;
  int32_t after_key;
  int32_t split;
  int32_t num_splits;
};

struct AttentionInput {
  const float* queries;       // [tokens][query_stride]
  int64_t query_stride;
  float* output;              // [tokens][output_stride]
  int64_t output_stride;
  const void* keys;           // [positions][kv_heads][head_dim], float32 or bfloat16
  const void* values;
  bool is_bfloat16;
  const int64_t* positions;   // [tokens]
  const int32_t* pages;       // the row's page table
  int64_t page_size;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t group;              // query heads per KV head
  int64_t window;             // a token sees itself and the window - 1 keys before it
  float* partial;             // [group][head_dim + 2] of this split, when num_splits > 1
  float* scratch;             // of this thread, attention_scratch_floats() long
};

constexpr int64_t kKeyTile = 64;
constexpr int64_t kKeyBlock = 256;

inline int64_t tokens_per_item(int64_t group) { return group >= 16 ? 1 : 16 / group; }

inline int64_t attention_scratch_floats(int64_t group, int64_t head_dim) {
  const int64_t queries = tokens_per_item(group) * group;
  return kKeyTile * head_dim + queries * (kKeyTile + 3 * head_dim + 4) + 64;
}

struct Kernels {
  const char* name;
  void (*quantise_row)(const float* input, const Weight& weight, const Activations& act, int64_t row);
  // rows * 16 outputs of one tile: output[r * stride] (+)= weight @ activations
  void (*linear_tile)(const Weight& weight, const Activations& act, int64_t first_row, int64_t rows,
                      int64_t tile, float* output, int64_t stride, bool add);
  void (*rms_norm)(const float* input, const float* weight, float eps, int64_t size, float* output);
  void (*silu_multiply)(const float* gate, const float* up, int64_t size, float* output);
  void (*rotate)(float* head, const float* cosines, const float* sines, int64_t head_dim);
  void (*store_kv)(const float* source, void* target, bool is_bfloat16, int64_t size);
  void (*attend)(const AttentionItem& item, const AttentionInput& input);
  // Merge one query's splits, `stride` floats apart, in their order; the first one is overwritten.
  void (*merge_splits)(float* splits, int64_t stride, int64_t num_splits, int64_t head_dim,
                       float* output);
  void (*embed_row)(const Weight& weight, int64_t row, float* output);
  // The largest of each block of kSampleBlock values; returns whether any of them is NaN.
  bool (*block_maxima)(const float* values, int64_t size, float* maxima);
  // exp((value - largest) / temperature) of one block into weights[kSampleBlock]; their sum.
  float (*block_weights)(const float* values, int64_t size, float largest, float temperature,
                         float* weights);
  // Repetition, frequency and presence penalty in place; tallies as in sampling.h.
  void (*penalise)(float* logits, const int32_t* tallies, int64_t size, float repetition,
                   float frequency, float presence);
};

// Each returns nullptr where the instruction set was not compiled in or the processor lacks it.
const Kernels* kernels_avx512();
const Kernels* kernels_avx2();
const Kernels* kernels_portable();

}  // namespace mizzen

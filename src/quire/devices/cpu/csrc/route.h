// Routing of tokens to experts, and the sum of their answers. Included by kernels.cpp, inside a variant's namespace.

// --- scores

// Exponentials of differences to the largest, divided by their sum. Numbers are padded to whole vectors in a copy.
inline void softmax(float *x, int count) {
    float most = x[0];
    for (int i = 1; i < count; ++i) most = x[i] > most ? x[i] : most;
    float total = 0.0f;
    for (int at = 0; at < count; at += LANES) {
        const int width = smaller(LANES, count - at);
        float part[LANES] = {};
        std::memcpy(part, x + at, sizeof(float) * width);
        store(part, exponential(load(part) - set1(most)));
        for (int i = 0; i < width; ++i) total += part[i];
        std::memcpy(x + at, part, sizeof(float) * width);
    }
    for (int i = 0; i < count; ++i) x[i] /= total;
}

inline void score(Scoring scoring, float *x, int count) {
    if (scoring == Scoring::SOFTMAX) return softmax(x, count);
    if (scoring == Scoring::SIGMOID) return map_part<MapKind::SIGMOID>({}, x, nullptr, count, x);
    if (scoring == Scoring::SQRT_SOFTPLUS)
        for (int i = 0; i < count; ++i) x[i] = std::sqrt((x[i] > 0.0f ? x[i] : 0.0f) + log1pf(expf(-std::fabs(x[i]))));
}

// --- choice

// The `top` largest numbers in descending order and their indices, as floats; of equal ones, the smaller index is first.
// A NaN is smaller than all numbers.
inline void find_largest(const float *x, int count, int top, float *found, float *indices) {
    int num_found = 0;
    for (int i = 0; i < count; ++i) {
        const float number = x[i] == x[i] ? x[i] : -HUGE_VALF;
        if (num_found == top && !(number > found[top - 1])) continue;
        int place = num_found < top ? num_found++ : top - 1;
        for (; place > 0 && number > found[place - 1]; --place)
            found[place] = found[place - 1], indices[place] = indices[place - 1];
        found[place] = number, indices[place] = static_cast<float>(i);
    }
}

// Sets the experts of all but the best groups to minus infinity. A group counts by the sum of its best.
inline void keep_groups(const RouteArgs &a, float *ranked, float *work) {
    const int size = a.num_experts / a.num_groups;
    float *sums = work, *found = sums + a.num_groups, *indices = found + a.num_groups;
    float *best = indices + a.num_groups;  // [2][group_top]
    for (int group = 0; group < a.num_groups; ++group) {
        find_largest(ranked + size * group, size, a.group_top, best, best + a.group_top);
        sums[group] = best[0];
        for (int i = 1; i < a.group_top; ++i) sums[group] += best[i];
    }
    find_largest(sums, a.num_groups, a.top_groups, found, indices);
    for (int group = 0; group < a.num_groups; ++group) {
        bool is_kept = false;
        for (int i = 0; i < a.top_groups; ++i) is_kept = is_kept || indices[i] == static_cast<float>(group);
        for (int i = 0; i < size && !is_kept; ++i) ranked[size * group + i] = -HUGE_VALF;
    }
}

inline void route_token(const RouteArgs &a, float *scores, float *weights, float *chosen) {
    const int count = a.num_experts;
    float *ranked = scores + count;
    if (a.softcap != 0.0f) {
        MapArgs capped{};
        capped.a = a.softcap;
        map_part<MapKind::SOFTCAP>(capped, scores, nullptr, count, scores);
    }
    if (!a.is_scored_after) score(a.scoring, scores, count);
    for (int i = 0; i < count; ++i) ranked[i] = a.correction ? scores[i] + a.correction[i] : scores[i];
    if (a.top_groups < a.num_groups) keep_groups(a, ranked, ranked + count);
    find_largest(ranked, count, a.top, weights, chosen);
    for (int i = 0; i < a.top; ++i) weights[i] = scores[static_cast<int>(chosen[i])];
    if (a.is_scored_after) score(a.scoring, weights, a.top);
    if (a.is_renormalized) {
        float total = 0.0f;
        for (int i = 0; i < a.top; ++i) total += weights[i];
        for (int i = 0; i < a.top; ++i) weights[i] /= total + 1e-20f;
    }
    for (int i = 0; i < a.top; ++i) {
        weights[i] *= a.factor;
        if (a.expert_scale) weights[i] *= a.expert_scale[static_cast<int>(chosen[i])];
    }
}

void route(const RouteArgs &a, int begin, int end) {
    for (int token = begin; token < end; ++token)
        route_token(a, a.work.row(token), a.weights.row(token), a.chosen.row(token));
}

// --- answers

void combine(const CombineArgs &a, int begin, int end) {
    for (int token = begin; token < end; ++token) {
        const int first = (token - begin) * a.top;
        const float *weights = a.weights.data ? a.weights.row(token) : nullptr;
        for (int at = 0; at < a.width; at += LANES) {
            const int width = smaller(LANES, a.width - at);
            F8 total = set1(0.0f);
            for (int rank = 0; rank < a.top; ++rank) {
                F8 answer = load(a.answers.row(first + rank) + at);  // rows of answers are whole vectors
                if (weights) answer = answer * set1(weights[rank]);
                total = rank ? total + answer : answer;
            }
            float part[LANES];
            store(part, total);
            std::memcpy(a.out.row(token) + at, part, sizeof(float) * width);
        }
    }
}

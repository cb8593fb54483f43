// The formulas of the sweeps for each element. Included by table-inl.h. The mean is subtracted before
// anything is multiplied: folding these formulas to a*dY + b*X + c would lose the digits that X and mean
// share.

struct MapForward {
  static constexpr int kKind = kMapForward;
  template <class T, class V, class Count>
  static BNGRAD_INLINE void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    const V d = Sub16(Sub16(Load(in[0] + i, count), f[0]), f[1]);
    out[0] = Add16(Mul16(d, f[2]), f[3]);
  }
};

template <class Dy>
struct MapGradTraining {
  static constexpr int kKind = Dy::kRelu ? kMapReluGradTraining : kMapGradTraining;
  template <class T, class V, class Count>
  static BNGRAD_INLINE void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    const V d = Sub16(Load(in[0] + i, count), f[0]);
    const V centered_dy = Sub16(Dy::template LoadDy<V>(in, i, count), f[2]);
    out[0] = Mul16(f[1], Sub16(centered_dy, Add16(Mul16(d, f[4]), f[3])));
  }
};

template <class Dy>
struct MapGradFrozen {
  static constexpr int kKind = Dy::kRelu ? kMapReluGradFrozen : kMapGradFrozen;
  template <class T, class V, class Count>
  static BNGRAD_INLINE void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    out[0] = Mul16(f[0], Dy::template LoadDy<V>(in, i, count));
  }
};

struct MapGradGradTraining {
  static constexpr int kKind = kMapGradGradTraining;
  template <class T, class V, class Count>
  static BNGRAD_INLINE void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    const V d = Sub16(Load(in[0] + i, count), f[0]);
    const V centered_ddx = Sub16(Load(in[2] + i, count), f[4]);
    const V centered_dy = Sub16(Load(in[1] + i, count), f[5]);
    out[0] = Add16(Mul16(f[1], centered_ddx), Add16(Mul16(d, f[2]), f[3]));
    out[1] = Sub16(Sub16(Mul16(f[2], centered_dy), Mul16(f[6], centered_ddx)), Add16(Mul16(d, f[7]), f[8]));
  }
};

struct MapGradGradFrozen {
  static constexpr int kKind = kMapGradGradFrozen;
  template <class T, class V, class Count>
  static BNGRAD_INLINE void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    const V d = Sub16(Load(in[0] + i, count), f[0]);
    out[0] = Add16(Mul16(f[1], Load(in[2] + i, count)), Add16(Mul16(d, f[2]), f[3]));
    out[1] = Mul16(f[2], Load(in[1] + i, count));
  }
};

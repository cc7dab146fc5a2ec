//! Dot products of one vector with selected rows of a matrix, for searching a neighbour graph. Rows are prefetched, because
//! they are scattered in memory. A row's product does not depend on the other rows.

/// `query · row` for each index in `rows`; `flat` holds rows of `query`'s length.
///
/// # Panics
/// If a row lies outside `flat`, or `out` and `rows` differ in length.
pub fn products(query: &[f32], flat: &[f32], rows: &[u32], out: &mut [f32]) {
    check(query.len(), flat.len(), rows, out.len());
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the features, and each row was checked to lie within `flat`.
            return unsafe { x86::each_512(query, flat, rows, out) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: as above.
            return unsafe { x86::each_256(query, flat, rows, out) };
        }
    }
    for (to, row) in out.iter_mut().zip(rows) {
        *to = plain(query, &flat[*row as usize * query.len()..][..query.len()]);
    }
}

/// `a · b`, computed like `products`.
///
/// # Panics
/// If the lengths differ.
pub fn product(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "a product is of vectors of one length");
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the features, and both have `a.len()` entries.
            return unsafe { x86::one_512(a.as_ptr(), b.as_ptr(), a.len()) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: as above.
            return unsafe { x86::one_256(a.as_ptr(), b.as_ptr(), a.len()) };
        }
    }
    plain(a, b)
}

/// `query · row` for int8 codes; the query's codes are i16. Exact.
///
/// # Panics
/// If a row lies outside `codes`, or `out` and `rows` differ in length.
pub fn code_products(query: &[i16], codes: &[i8], rows: &[u32], out: &mut [i32]) {
    check(query.len(), codes.len(), rows, out.len());
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512bw") {
            // SAFETY: the processor has the features, and each row was checked to lie within `codes`.
            return unsafe { x86::codes_512(query, codes, rows, out) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { x86::codes_256(query, codes, rows, out) };
        }
    }
    for (to, row) in out.iter_mut().zip(rows) {
        *to = plain_codes(query, &codes[*row as usize * query.len()..][..query.len()]);
    }
}

fn check(width: usize, len: usize, rows: &[u32], out: usize) {
    assert_eq!(rows.len(), out, "one product for each row");
    let num = len.checked_div(width).unwrap_or(0);
    assert!(rows.iter().all(|row| (*row as usize) < num), "a row lies outside the matrix");
}

fn plain(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 16];
    let (a, b) = (a.chunks_exact(16), b.chunks_exact(16));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for i in 0..16 {
            sums[i] += a[i] * b[i];
        }
    }
    rest + sums.iter().sum::<f32>()
}

fn plain_codes(query: &[i16], row: &[i8]) -> i32 {
    query.iter().zip(row).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// Rows prefetched ahead of the current one.
    const AHEAD: usize = 4;
    /// Bytes of a cache line.
    const LINE: usize = 64;

    /// # Safety
    /// `at` must return the start of `bytes` readable bytes for each index below `num`.
    #[inline(always)]
    unsafe fn fetched(num: usize, bytes: usize, at: impl Fn(usize) -> *const i8, mut each: impl FnMut(usize)) {
        let fetch = |i: usize| {
            let row = at(i);
            for byte in (0..bytes).step_by(LINE) {
                // SAFETY: within the row; a prefetch changes nothing.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(row.add(byte)) };
            }
        };
        (0..num.min(AHEAD)).for_each(fetch);
        for i in 0..num {
            if i + AHEAD < num {
                fetch(i + AHEAD);
            }
            each(i);
        }
    }

    macro_rules! floats {
        ($each:ident, $one:ident, $features:literal) => {
            /// # Safety
            /// The processor must have the features, and every row must lie within `flat`.
            #[target_feature(enable = $features)]
            pub unsafe fn $each(query: &[f32], flat: &[f32], rows: &[u32], out: &mut [f32]) {
                let width = query.len();
                // SAFETY: guaranteed by the caller.
                let at = |i: usize| unsafe { flat.as_ptr().add(rows[i] as usize * width) };
                let num = rows.len();
                // SAFETY: guaranteed by the caller.
                unsafe { fetched(num, width * 4, |i| at(i).cast(), |i| out[i] = $one(query.as_ptr(), at(i), width)) };
            }
        };
    }
    floats!(each_512, one_512, "avx512f");
    floats!(each_256, one_256, "avx2,fma");

    macro_rules! codes {
        ($each:ident, $one:ident, $features:literal) => {
            /// # Safety
            /// The processor must have the features, and every row must lie within `codes`.
            #[target_feature(enable = $features)]
            pub unsafe fn $each(query: &[i16], codes: &[i8], rows: &[u32], out: &mut [i32]) {
                let width = query.len();
                // SAFETY: guaranteed by the caller.
                let at = |i: usize| unsafe { codes.as_ptr().add(rows[i] as usize * width) };
                // SAFETY: guaranteed by the caller.
                unsafe { fetched(rows.len(), width, at, |i| out[i] = $one(query.as_ptr(), at(i), width)) };
            }
        };
    }
    codes!(codes_512, code_512, "avx512f,avx512bw");
    codes!(codes_256, code_256, "avx2");

    /// # Safety
    /// The processor must have the feature, and both must have `width` entries.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub unsafe fn one_512(a: *const f32, b: *const f32, width: usize) -> f32 {
        let mut sums = [_mm512_setzero_ps(); 4];
        let mut at = 0;
        while at + 64 <= width {
            for (i, sum) in sums.iter_mut().enumerate() {
                let at = at + 16 * i;
                // SAFETY: 64 entries are available from `at` on.
                *sum = unsafe { _mm512_fmadd_ps(_mm512_loadu_ps(a.add(at)), _mm512_loadu_ps(b.add(at)), *sum) };
            }
            at += 64;
        }
        while at < width {
            let mask = if width - at >= 16 { !0 } else { (1_u16 << (width - at)) - 1 };
            // SAFETY: masked-out entries are not read.
            let (a, b) = unsafe { (_mm512_maskz_loadu_ps(mask, a.add(at)), _mm512_maskz_loadu_ps(mask, b.add(at))) };
            sums[0] = _mm512_fmadd_ps(a, b, sums[0]);
            at += 16;
        }
        let [a, b, c, d] = sums;
        _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)))
    }

    /// # Safety
    /// The processor must have the features, and both must have `width` entries.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn one_256(a: *const f32, b: *const f32, width: usize) -> f32 {
        let mut sums = [_mm256_setzero_ps(); 4];
        let mut at = 0;
        while at + 32 <= width {
            for (i, sum) in sums.iter_mut().enumerate() {
                let at = at + 8 * i;
                // SAFETY: 32 entries are available from `at` on.
                *sum = unsafe { _mm256_fmadd_ps(_mm256_loadu_ps(a.add(at)), _mm256_loadu_ps(b.add(at)), *sum) };
            }
            at += 32;
        }
        let [x, y, z, w] = sums;
        let mut eight = [0.0; 8];
        let sum = _mm256_add_ps(_mm256_add_ps(x, y), _mm256_add_ps(z, w));
        // SAFETY: there is room for eight.
        unsafe { _mm256_storeu_ps(eight.as_mut_ptr(), sum) };
        // SAFETY: below `width`.
        let rest: f32 = (at..width).map(|at| unsafe { *a.add(at) * *b.add(at) }).sum();
        rest + eight.iter().sum::<f32>()
    }

    /// # Safety
    /// The processor must have the features, and both must have `width` entries.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn code_512(query: *const i16, row: *const i8, width: usize) -> i32 {
        let mut sums = [_mm512_setzero_si512(); 2];
        let mut at = 0;
        while at + 32 <= width {
            // SAFETY: 32 entries are available from `at` on.
            let (a, b) = unsafe { (_mm512_loadu_si512(query.add(at).cast()), _mm256_loadu_si256(row.add(at).cast())) };
            let sum = &mut sums[at / 32 % 2];
            *sum = _mm512_add_epi32(*sum, _mm512_madd_epi16(a, _mm512_cvtepi8_epi16(b)));
            at += 32;
        }
        // SAFETY: below `width`.
        let rest: i32 = (at..width).map(|at| unsafe { i32::from(*query.add(at)) * i32::from(*row.add(at)) }).sum();
        rest + _mm512_reduce_add_epi32(_mm512_add_epi32(sums[0], sums[1]))
    }

    /// # Safety
    /// The processor must have the feature, and both must have `width` entries.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn code_256(query: *const i16, row: *const i8, width: usize) -> i32 {
        let mut sums = [_mm256_setzero_si256(); 2];
        let mut at = 0;
        while at + 16 <= width {
            // SAFETY: 16 entries are available from `at` on.
            let (a, b) = unsafe { (_mm256_loadu_si256(query.add(at).cast()), _mm_loadu_si128(row.add(at).cast())) };
            let sum = &mut sums[at / 16 % 2];
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(a, _mm256_cvtepi8_epi16(b)));
            at += 16;
        }
        let mut eight = [0; 8];
        // SAFETY: there is room for eight.
        unsafe { _mm256_storeu_si256(eight.as_mut_ptr().cast(), _mm256_add_epi32(sums[0], sums[1])) };
        // SAFETY: below `width`.
        let rest: i32 = (at..width).map(|at| unsafe { i32::from(*query.add(at)) * i32::from(*row.add(at)) }).sum();
        rest + eight.iter().sum::<i32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deterministic numbers from -1 to 1.
    fn numbers(num: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..num).map(|_| next()).collect()
    }

    fn close(found: f32, a: &[f32], b: &[f32]) {
        let exact: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        assert!((f64::from(found) - exact).abs() < 1e-4, "{found} for {exact} at width {}", a.len());
    }

    #[test]
    fn products_are_those_of_the_plain_sum_at_any_width() {
        for width in [1, 7, 15, 16, 17, 31, 63, 64, 65, 100, 384, 1000] {
            let (query, flat) = (numbers(width, 1), numbers(width * 9, 2));
            let rows = [3, 0, 8, 3, 5, 1, 7];
            let mut out = [0.0; 7];
            products(&query, &flat, &rows, &mut out);
            let row = |row: u32| &flat[row as usize * width..][..width];
            for (found, at) in out.into_iter().zip(rows) {
                close(found, &query, row(at));
                assert_eq!(found, product(&query, row(at)), "one row alone, at width {width}");
                close(plain(&query, row(at)), &query, row(at));
            }
        }
    }

    #[test]
    fn products_of_codes_are_exact() {
        for width in [1, 15, 16, 17, 31, 32, 33, 64, 384, 1000] {
            let code = |x: &f32| (x * 128.0).floor() as i8;
            let query: Vec<i16> = numbers(width, 3).iter().map(|x| code(x).into()).collect();
            let codes: Vec<i8> = numbers(width * 6, 4).iter().map(code).collect();
            let mut out = [0; 6];
            code_products(&query, &codes, &[5, 4, 3, 2, 1, 0], &mut out);
            for (i, found) in out.into_iter().rev().enumerate() {
                assert_eq!(found, plain_codes(&query, &codes[i * width..][..width]));
            }
        }
        let mut out = [0];
        code_products(&[-128; 384], &[-128; 384], &[0], &mut out);
        assert_eq!(out, [384 * 128 * 128]);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_instruction_set_agrees() {
        let rows = [2, 0, 1];
        for width in [5, 40, 384] {
            let (query, flat) = (numbers(width, 5), numbers(width * 3, 6));
            let codes: Vec<i8> = flat.iter().map(|x| (x * 127.0) as i8).collect();
            let asked: Vec<i16> = query.iter().map(|x| (x * 127.0) as i16).collect();
            let (mut best, mut other) = ([0.0; 3], [0.0; 3]);
            let (mut exact, mut codes_256) = ([0; 3], [0; 3]);
            products(&query, &flat, &rows, &mut best);
            code_products(&asked, &codes, &rows, &mut exact);
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: the processor has the features, and all rows exist.
                unsafe { x86::each_256(&query, &flat, &rows, &mut other) };
                assert!(best.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-4));
                // SAFETY: as above.
                unsafe { x86::codes_256(&asked, &codes, &rows, &mut codes_256) };
                assert_eq!(exact, codes_256);
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside the matrix")]
    fn a_row_that_is_not_there_is_refused() {
        products(&[1.0; 4], &[1.0; 12], &[0, 3], &mut [0.0; 2]);
    }

    #[test]
    #[should_panic(expected = "outside the matrix")]
    fn nothing_has_rows_of_no_width() {
        products(&[], &[1.0; 12], &[0], &mut [0.0]);
    }
}

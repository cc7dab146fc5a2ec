//! Quotes in blocks of JSON text, for the search-log parser.

/// Bit N is set if byte N is a quote. `None` if any byte is a backslash or a control character: then a quote may not be the
/// end of a string.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn plain_quotes(block: &[u8; 64]) -> Option<u64> {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
        _mm_setzero_si128,
    };
    // SAFETY: every x86-64 processor has SSE2, and each load is of 16 bytes of the block.
    unsafe {
        let (mut quotes, mut unusual) = (0, _mm_setzero_si128());
        for (at, part) in block.chunks_exact(16).enumerate() {
            let bytes = _mm_loadu_si128(part.as_ptr().cast());
            let is_control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
            let is_backslash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\' as i8));
            unusual = _mm_or_si128(unusual, _mm_or_si128(is_control, is_backslash));
            let is_quote = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'"' as i8)));
            quotes |= u64::from(is_quote as u16) << (16 * at);
        }
        (_mm_movemask_epi8(unusual) == 0).then_some(quotes)
    }
}

/// Bit N is set if byte N is a quote. `None` if any byte is a backslash or a control character: then a quote may not be the
/// end of a string.
#[cfg(not(target_arch = "x86_64"))]
pub fn plain_quotes(block: &[u8; 64]) -> Option<u64> {
    let is_unusual = block.iter().fold(false, |is_unusual, byte| is_unusual | (*byte < b' ') | (*byte == b'\\'));
    let bits = block.iter().enumerate().map(|(at, byte)| u64::from(*byte == b'"') << at);
    (!is_unusual).then(|| bits.fold(0, |all, bit| all | bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_quote_and_refuses_unusual_bytes() {
        for at in 0..64 {
            let mut block = [b'x'; 64];
            block[at] = b'"';
            assert_eq!(plain_quotes(&block), Some(1 << at));
            // differs from a quote in the high bit
            block[at] = b'"' | 0x80;
            assert_eq!(plain_quotes(&block), Some(0));
            for unusual in [b'\\', 0, 0x1f] {
                block[at] = unusual;
                assert_eq!(plain_quotes(&block), None);
            }
        }
        assert_eq!(plain_quotes(&[b'"'; 64]), Some(u64::MAX));
    }
}

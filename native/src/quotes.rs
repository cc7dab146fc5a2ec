//! Quotes in JSON text, for the search-log parser: of a block of 64 bytes, or of a whole line.

/// Longest line, in bytes, whose quotes a `QuoteMap` holds.
const MAX_LINE: usize = 1024;
const BLOCK: usize = 64;

/// Where the quotes of a line are. The line has no escapes, so quotes always begin or end a string.
#[derive(Clone, Debug)]
pub struct QuoteMap {
    /// Bit N of block M is set if byte `64 * M + N` is a quote.
    blocks: [u64; MAX_LINE / BLOCK],
    num_blocks: usize,
}

impl Default for QuoteMap {
    fn default() -> Self {
        Self { blocks: [0; MAX_LINE / BLOCK], num_blocks: 0 }
    }
}

impl QuoteMap {
    /// Finds the quotes of a line and gives its text. `None` if the line has a backslash or a control character, is longer
    /// than 1,024 bytes, or is not UTF-8.
    #[inline]
    pub fn read<'a>(&mut self, line: &'a [u8]) -> Option<&'a str> {
        if line.len() > MAX_LINE {
            return None;
        }
        self.num_blocks = line.len().div_ceil(BLOCK);
        if read_blocks(line, &mut self.blocks)? {
            // SAFETY: every byte is ASCII.
            return Some(unsafe { str::from_utf8_unchecked(line) });
        }
        str::from_utf8(line).ok()
    }

    /// Position of the first quote at `start` or later.
    #[inline(always)]
    pub fn next(&self, start: usize) -> Option<usize> {
        let (mut block, bit) = (start / BLOCK, start % BLOCK);
        let blocks = &self.blocks[..self.num_blocks.min(MAX_LINE / BLOCK)];
        let quotes = blocks.get(block)? >> bit;
        if quotes != 0 {
            return Some(start + quotes.trailing_zeros() as usize);
        }
        loop {
            block += 1;
            let quotes = *blocks.get(block)?;
            if quotes != 0 {
                return Some(block * BLOCK + quotes.trailing_zeros() as usize);
            }
        }
    }
}

/// Whether the line is ASCII; `None` if it has a backslash or a control character.
#[inline]
fn read_blocks(line: &[u8], blocks: &mut [u64; MAX_LINE / BLOCK]) -> Option<bool> {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512bw") {
        // SAFETY: the processor has the instructions.
        return unsafe { read_blocks_avx512(line, blocks) };
    }
    read_blocks_baseline(line, blocks)
}

fn read_blocks_baseline(line: &[u8], blocks: &mut [u64; MAX_LINE / BLOCK]) -> Option<bool> {
    let (whole, rest) = line.as_chunks();
    let mut last = [b' '; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    for (block, quotes) in whole.iter().chain((!rest.is_empty()).then_some(&last)).zip(blocks) {
        *quotes = plain_quotes(block)?;
    }
    Some(line.is_ascii())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512bw")]
fn read_blocks_avx512(line: &[u8], blocks: &mut [u64; MAX_LINE / BLOCK]) -> Option<bool> {
    use std::arch::x86_64::{
        _mm512_cmpeq_epi8_mask, _mm512_mask_cmplt_epu8_mask, _mm512_maskz_loadu_epi8, _mm512_movepi8_mask,
        _mm512_set1_epi8,
    };
    let (quote, backslash, space) =
        (_mm512_set1_epi8(b'"' as i8), _mm512_set1_epi8(b'\\' as i8), _mm512_set1_epi8(b' ' as i8));
    let (mut unusual, mut beyond_ascii) = (0, 0);
    for (part, quotes) in line.chunks(BLOCK).zip(blocks) {
        let is_inside = u64::MAX >> (BLOCK - part.len());
        // SAFETY: loads bytes of `part` only.
        let bytes = unsafe { _mm512_maskz_loadu_epi8(is_inside, part.as_ptr().cast()) };
        *quotes = _mm512_cmpeq_epi8_mask(bytes, quote);
        unusual |= _mm512_cmpeq_epi8_mask(bytes, backslash) | _mm512_mask_cmplt_epu8_mask(is_inside, bytes, space);
        beyond_ascii |= _mm512_movepi8_mask(bytes);
    }
    (unusual == 0).then_some(beyond_ascii == 0)
}

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

    #[test]
    fn both_ways_to_map_a_line_find_the_same() {
        type ReadBlocks = fn(&[u8], &mut [u64; MAX_LINE / BLOCK]) -> Option<bool>;
        for length in (0..200).chain([MAX_LINE - 1, MAX_LINE]) {
            for (place, byte) in [(0, b'"'), (length / 2, b'"'), (length, b'\\'), (length, 0x1f), (length / 2, 0xe9)] {
                let mut line = vec![b'x'; length];
                if let Some(last) = line.last_mut() {
                    *last = b'"';
                }
                if let Some(found) = line.get_mut(place.min(length.wrapping_sub(1))) {
                    *found = byte;
                }
                let all: Vec<usize> = (0..length).filter(|at| line[*at] == b'"').collect();
                let is_unusual = line.iter().any(|byte| *byte < b' ' || *byte == b'\\');
                for read in [read_blocks as ReadBlocks, read_blocks_baseline] {
                    let mut map = QuoteMap { num_blocks: length.div_ceil(BLOCK), ..QuoteMap::default() };
                    let is_ascii = read(&line, &mut map.blocks);
                    assert_eq!(is_ascii, (!is_unusual).then(|| line.is_ascii()), "{length} {place} {byte}");
                    let next = |at: &usize| map.next(at + 1);
                    let found: Vec<usize> = std::iter::successors(map.next(0), next).collect();
                    assert!(is_unusual || found == all, "{length} {place} {byte}");
                }
            }
        }
    }

    #[test]
    fn a_map_is_of_short_text_only() {
        let mut map = QuoteMap::default();
        assert_eq!(map.read("{\"é\":1}".as_bytes()), Some("{\"é\":1}"));
        assert_eq!((map.next(0), map.next(2), map.next(5)), (Some(1), Some(4), None));
        assert_eq!((map.read(b""), map.next(0)), (Some(""), None));
        for line in [&b"\xff"[..], b"a\\", b"\n", &[b'x'; MAX_LINE + 1]] {
            assert_eq!(map.read(line), None);
        }
    }
}

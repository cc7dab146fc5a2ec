//! Opens the judge of a configuration, with its cache and audit log, and the blend of its verdicts with quality and exclusivity.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use tch::Device;
use tokio::runtime::{Builder, Runtime};

use super::Config;
use souk_cross_encoder::{
    CrossEncoder, CrossEncoderJudge, HybridGrading, HybridJudge, HybridScorer, PairScorer, RERANKER, RerankFit,
    Reranker,
};
use souk_io::audit::AuditLog;
use souk_io::beir::DataFolder;
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;
use souk_lexical::{Fusion, Hybrid, Lexical, ModelFusion};
use souk_nn::backbone::Precision;
use souk_nn::encoder::{Encoder, Overrides, Placement};
use souk_report::Reranking;
use souk_reward::{Blend, Judge, ModelJudge, QrelsJudge, RewardSource};
use souk_store::{MAX_PAGE, SqlLedger};

/// The file that a simulated shop is known by.
const MARKET: &str = "market.json";

/// The runtime of what a judge needs for as long as the process lives: its cache and its ledger.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let built = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let built = built.map_err(|e| Error::device("cannot start a thread for the store").because(e))?;
    Ok(RUNTIME.get_or_init(|| built))
}

impl Config {
    pub(super) fn open_blend(&self, data: &DataFolder, item_text: &ItemText) -> Result<Blend> {
        let lexical = || self.open_lexical(data, item_text);
        let blend = Blend::build(&self.reward, self.open_judge(data, item_text)?, lexical)?;
        let qualities = if self.reward.quality > 0.0 { self.qualities(data)? } else { HashMap::new() };
        Ok(blend.with_qualities(qualities))
    }

    /// Quality from the log, by catalogue row, of items whose catalogue entry has none.
    fn qualities(&self, data: &DataFolder) -> Result<HashMap<u32, f32>> {
        let (mut rows, mut ids) = (Vec::new(), Vec::new());
        for (item, row) in data.items()?.zip(0_u32..) {
            let (_, item) = item?;
            if item.fields.get("quality").is_none_or(serde_json::Value::is_null) {
                rows.push(row);
                ids.push(item.id);
            }
        }
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        if !SqlLedger::exists(&self.store.database)? {
            tracing::warn!(
                "{} items have no quality and count as average: `souk judgements --quality` derives it from the log",
                ids.len()
            );
            return Ok(HashMap::new());
        }
        let found = runtime()?.block_on(async {
            let ledger = self.store.open_ledger().await?;
            let mut found = Vec::with_capacity(ids.len());
            for ids in ids.chunks(MAX_PAGE) {
                found.extend(ledger.get_quality(ids).await?);
            }
            Ok::<_, Error>(found)
        })?;
        Ok(rows.into_iter().zip(found).filter_map(|(row, found)| Some((row, found?.score as f32))).collect())
    }

    /// The judge for evaluation of items without judgements: the configured judge, else the oracle of a simulated shop, else only the
    /// split's judgements.
    pub fn open_referee(&self, data: &DataFolder, split: &str, item_text: &ItemText) -> Result<Arc<dyn RewardSource>> {
        if self.judge.is_some() || data.path().join(MARKET).exists() {
            return self.open_judge(data, item_text);
        }
        let judge = Some(Judge::Qrels(QrelsJudge { split: split.into() }));
        Self { judge, ..self.clone() }.open_judge(data, item_text)
    }

    /// A relevance model, or hybrid search with a model, that reranks hits.
    pub fn open_reranker(
        &self,
        model: &Path,
        data: &DataFolder,
        item_text: &ItemText,
    ) -> Result<Arc<dyn RewardSource>> {
        let judge = &ModelJudge::at(model);
        match HybridGrading::of_model(model)? {
            Some(grading) => self.open_hybrid_judge(judge, &grading, data, item_text),
            None => Ok(Arc::new(CrossEncoderJudge::new(
                self.open_cross_encoder(judge, item_text)?.freeze()?,
                judge.batch_tokens,
            ))),
        }
    }

    /// The reranker in a model's folder.
    pub(super) fn open_version_reranker(&self, dir: &Path, item_text: &ItemText) -> Result<Option<Reranker>> {
        Reranker::of_model(dir, self.reranking()?, self.worker, item_text)
    }

    /// Reranker of `/search` for the model in a folder, and the number of hits, if its channel is `fusion`.
    pub fn open_served_reranker(
        &self,
        dir: &Path,
        fusion: Option<&Fusion>,
        item_text: &ItemText,
    ) -> Result<Option<(Reranking, usize)>> {
        let own = Hybrid::Enabled(true).fusion(ModelFusion::load(dir)?);
        let Some(fit) = RerankFit::of_model(dir)?.filter(|_| fusion.is_some() && fusion == own.as_ref()) else {
            return Ok(None);
        };
        let depth = self.search.rerank.depth(&fit);
        if depth == 0 {
            return Ok(None);
        }
        let scorer = Box::new(self.open_pair_scorer(&dir.join(RERANKER), item_text)?);
        Ok(Some((Reranking::Version { scorer, weight: fit.weight }, depth)))
    }

    /// Hybrid search with the model at a path, as a judge of the catalogue's items.
    fn open_hybrid_judge(
        &self,
        judge: &ModelJudge,
        grading: &HybridGrading,
        data: &DataFolder,
        item_text: &ItemText,
    ) -> Result<Arc<dyn RewardSource>> {
        let dir = &judge.path;
        let open = |overrides| Encoder::open(dir, self.judge_placement(judge)?, overrides);
        let mut encoder = open(Overrides::default())?;
        if grading.model != encoder.fingerprint()? {
            // `souk start` fits it with the settings of the shop
            encoder = open(self.encoder.clone())?;
        }
        if encoder.item_text() != item_text {
            let problem = format!(
                "was trained on items as `{}`, but is asked about items as `{item_text}`: set encoder.item_text to the former",
                encoder.item_text()
            );
            return Err(Error::config(dir.display(), problem));
        }
        if grading.model != encoder.fingerprint()? {
            let problem = "became a judge with other weights or [encoder] settings: run `souk fit-fusion --as-judge` again, with this configuration";
            return Err(Error::config(dir.display(), problem));
        }
        let fusion = ModelFusion::with_weights(grading.weights, dir)?;
        let scorer = self.hybrid_scorer(dir, encoder, self.open_lexical(data, item_text)?, fusion)?;
        let name = dir.canonicalize().ok().and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
        Ok(Arc::new(HybridJudge::new(&name.unwrap_or_default(), scorer, grading)))
    }

    /// Scores of hybrid search with the model in a folder, these weights, and its reranker if search has these weights too.
    pub fn hybrid_scorer(
        &self,
        dir: &Path,
        encoder: Encoder,
        lexical: Lexical,
        fusion: ModelFusion,
    ) -> Result<HybridScorer> {
        let is_served = ModelFusion::load(dir)?.as_ref() == Some(&fusion);
        let reranker = match RerankFit::of_model(dir)?.filter(|_| is_served) {
            Some(fit) => Some((self.open_pair_scorer(&dir.join(RERANKER), encoder.item_text())?, fit.weight)),
            None => None,
        };
        HybridScorer::new(encoder, lexical, fusion, reranker)
    }

    /// BM25 over the items of a data folder.
    fn open_lexical(&self, data: &DataFolder, item_text: &ItemText) -> Result<Lexical> {
        let texts = data.items()?.map(|item| Ok(item_text.render(&item?.1)));
        Lexical::build_with(self.search.lexical.unwrap_or_default(), texts)
    }

    /// The relevance model at a path, as it reranks the hits of a search.
    pub fn open_pair_scorer(&self, dir: &Path, item_text: &ItemText) -> Result<PairScorer> {
        PairScorer::open(dir, self.reranking()?, item_text)
    }

    /// Reranking on a CPU is in int8: it is faster, and the order hardly differs.
    fn reranking(&self) -> Result<Placement> {
        let mut placement = self.placement()?;
        placement.adapter = None;
        if placement.device == Device::Cpu {
            placement.precision = Precision::Int8;
        }
        Ok(placement)
    }

    fn judge_placement(&self, judge: &ModelJudge) -> Result<Placement> {
        let mut placement = self.placement()?;
        placement.adapter = None;
        if judge.int8 {
            placement.precision = Precision::Int8;
        }
        Ok(placement)
    }

    /// A model in this process. One that was trained on texts of another template is an error.
    fn open_model_judge(
        &self,
        judge: &ModelJudge,
        data: &DataFolder,
        item_text: &ItemText,
    ) -> Result<Arc<dyn RewardSource>> {
        if let Some(grading) = HybridGrading::of_model(&judge.path)? {
            return self.open_hybrid_judge(judge, &grading, data, item_text);
        }
        let model = self.open_cross_encoder(judge, item_text)?;
        model.check_calibrated(&judge.path)?;
        Ok(Arc::new(CrossEncoderJudge::new(model.freeze()?, judge.batch_tokens)))
    }

    fn open_cross_encoder(&self, judge: &ModelJudge, item_text: &ItemText) -> Result<CrossEncoder> {
        let model = CrossEncoder::open(&judge.path, self.judge_placement(judge)?)?;
        model.check_item_text(&judge.path, item_text)?;
        Ok(model)
    }

    /// The judge: the named one, or the data's default. It is asked about texts of the template `item_text`; a relevance model that
    /// was trained on others is an error.
    pub fn open_judge(&self, data: &DataFolder, item_text: &ItemText) -> Result<Arc<dyn RewardSource>> {
        let simulated = data.path().join(MARKET).exists();
        let judge = self.judge.clone().or_else(|| simulated.then_some(Judge::Oracle {})).ok_or_else(|| {
            let problem =
                "no judge is configured: set [judge] type = \"model\", \"souk\", \"openai\", \"rerank\" or \"qrels\"";
            Error::config("judge", problem)
        })?;
        let (mut cache, mut audits) = (None, None);
        if judge.model().is_some() && self.reward.cache {
            // in memory: a verdict from elsewhere would be of another model with the same name
            cache = Some(self.store.memory_cache()?);
        }
        if judge.is_remote() {
            let runtime = runtime()?;
            let _entered = runtime.enter();
            cache = self.reward.cache.then(|| self.store.open_cache()).transpose()?;
            if self.reward.audit_rate > 0.0 {
                let ledger: Arc<dyn AuditLog> = runtime.block_on(self.store.open_ledger())?;
                audits = Some((ledger, self.reward.audit_rate));
            }
        }
        let model = |judge: &ModelJudge| self.open_model_judge(judge, data, item_text);
        souk_reward::open(&judge, data, model, cache, audits)
    }
}

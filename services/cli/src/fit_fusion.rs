//! `souk fit-fusion`: fits the weights of hybrid search to judged queries.

use std::path::{Path, PathBuf};

use clap::Args;
use souk::backbone::hub;
use souk::config::Config;
use souk::cross_encoder::{
    HYBRID_JUDGE, HybridGrading, MAX_RERANKED, RERANKER, RerankFit, RerankQuality, disable_reranker,
};
use souk::domain::query_place;
use souk::error::{Error, Result};
use souk::lexical::{
    FUSION, FitQuality, FittedFusion, FittedOn, Fusion, Lexical, ModelFusion, TRANSLATIONS, TranslationPairs,
};
use souk::objects;
use souk::report::{
    CrossFitted, Engine, Fitted, FusionInputs, MIN_QUERIES, Task, TaskQuery, fit_fusion, fit_reranker, judged_scores,
};

use crate::evaluate::encode_task;
use crate::output::print;
use crate::progress::ProgressDisplay;
use crate::translations::translation_pairs;
use crate::{GlobalArgs, ModelArgs};

/// Hits that a new reranker reads.
const DEFAULT_DEPTH: usize = 50;

/// Fit the weights of hybrid search to judgements
///
/// An item's score becomes the weighted sum of its cosine, its BM25 score, the share of the query's terms and letter
/// sequences that its text has, the number of the query's numbers that it lacks, and how well translations of its words
/// explain the query. The weights are fitted to the order of judged items and written to fusion.json in the model's
/// folder. Hybrid searches with this model use them, unless search.hybrid or the request has weights of its own.
/// `souk train` copies what is fitted to the models it trains.
///
/// Translations say which words of items answer which words of queries: `duplex` answers `outlet`. They are learned from
/// the training pairs of the data folder (train.pairs, train.split) and written to translations.tsv, unless weights with
/// them are worse.
///
/// Prints nDCG@10 of the default and of fitted weights (by cross-validation). If fitted weights are not better, hybrid
/// search uses the default ones. Ten judged queries are enough: the fewer there are, the nearer the fitted weights are to
/// those that raters of other queries gave other models.
///
/// With --reranker, a relevance model (`souk relevance train`) or a cross-encoder as the Hugging Face hub has them also
/// reads the first hits of a search, and the weight of its output is fitted. If that brings something, it is copied to
/// reranker/ in the model's folder, and `/search` reranks with it. A model that has a reranker keeps it; its weight is
/// fitted again.
///
/// With --as-judge, hybrid search with fitted weights also becomes a judge: its scores are calibrated to the levels of the
/// judged pairs and the result is written to hybrid-judge.json. A model that is a judge is calibrated again.
/// `[judge] type = "model"` with this model as `path` then teaches another one.
///
/// Fit to queries that the model was not trained on: another split, or the share train.held_out of the training split.
///
/// Example: souk fit-fusion --model DIR --data SHOP --split dev
///
/// Example: souk fit-fusion --model DIR --data SHOP --split dev --reranker JUDGE --depth 50
///
/// Example: souk fit-fusion --model DIR --data SHOP --split dev --reranker cross-encoder/ms-marco-MiniLM-L6-v2
///
/// Example: souk fit-fusion --model DIR --data SHOP --split train --set train.held_out=0.1 --as-judge
#[derive(Args)]
pub struct FitFusionCommand {
    #[command(flatten)]
    model: ModelArgs,
    /// Data folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Split with the judgements to fit to; of train.split, only the queries that train.held_out holds out
    #[arg(long, default_value = "dev")]
    split: String,
    /// Relevance model, or cross-encoder of the Hugging Face hub, that is to rerank the first hits: a folder or a hub name
    #[arg(long, value_name = "MODEL")]
    reranker: Option<String>,
    /// Number of hits that it reranks; by default as before, else 50
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_RERANKED as i64))]
    depth: Option<u32>,
    /// Folder that keeps the catalogue's vectors for the next command that measures the same model
    #[arg(long, value_name = "DIR")]
    vectors: Option<PathBuf>,
    /// Make hybrid search with this model a judge
    #[arg(long)]
    as_judge: bool,
}

impl FitFusionCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let config = globals.load(self.model.changes())?;
        if let Some(path) = config.model.path.as_deref().filter(|path| objects::is_remote(path)) {
            let problem =
                format!("`{path}` is remote, and fusion.json is written beside the model: copy it to a folder first");
            return Err(Error::config("model.path", problem).into());
        }
        let dir = config.model_dir()?;
        let reader = config.open_reader()?;
        let data = config.open_data(&self.data)?;
        let task = Task::load(&data, &self.split, reader.item_text())?;
        let (pairs, problem) = match translation_pairs(&config, &data, reader.item_text()) {
            Ok(pairs) => (pairs, None),
            // weights can be fitted without them
            Err(error) => (TranslationPairs::default(), Some(error)),
        };
        let translations = CrossFitted::learn(&pairs, &task.queries);
        let lexical = task.lexical(config.search.lexical.unwrap_or_default())?;
        let engine = encode_task(&config, &task, self.vectors.as_deref())?;
        let held_out = if self.split == config.train.split { config.train.held_out } else { 0.0 };
        let is_used = |query: &TaskQuery| held_out == 0.0 || query_place(&query.text) < held_out;
        let fit = JudgedShop { config: &config, dir: &dir, task: &task, lexical, translations, is_used: &is_used };
        let is_judge = dir.join(HYBRID_JUDGE).exists();
        let FittedFiles { fusion, fitted, mut text } =
            self.fit_weights(&fit, &engine, (pairs.len(), problem), self.as_judge || is_judge)?;
        let used = fitted.clone().filter(|_| fusion.weights.is_some());
        let mut json = serde_json::to_value(&fusion)?;
        let own = Some(dir.join(RERANKER)).filter(|own| own.exists());
        let given = self.reranker.as_deref().map(hub::resolve).transpose()?;
        if let Some(judge) = given.or(own) {
            let fitted = fit.install_reranker(&judge, &fit.hybrid(engine, used)?, self.depth)?;
            text += &describe_reranker(fitted.as_ref(), &dir.join(RERANKER));
            json["reranker"] = serde_json::to_value(&fitted)?;
        }
        match fitted {
            Some(fitted) if self.as_judge || is_judge => {
                let grading = fit.calibrate(fusion.fitted_on.model.clone(), fitted)?;
                text += &describe_judge(&grading, &dir.join(HYBRID_JUDGE));
                json["judge"] = serde_json::to_value(&grading)?;
            }
            None if is_judge => {
                let file = dir.join(HYBRID_JUDGE);
                std::fs::remove_file(&file).map_err(Error::store(&file, "remove it"))?;
                text += "\nno judge any more: too few queries are judged";
            }
            _ => {}
        }
        if self.as_judge && fusion.fitted_on.queries == 0 {
            let problem = format!("--as-judge: a judge needs {MIN_QUERIES} judged queries or more");
            return Err(Error::input(problem).into());
        }
        print(globals, &json, &text)
    }

    /// Fits the weights, with translations unless they are worse, and writes both beside the model, if search or a judge uses them. `pairs`:
    /// how many there are to learn translations from, and why there are none.
    fn fit_weights(
        &self,
        shop: &JudgedShop<'_>,
        engine: &Engine,
        pairs: (usize, Option<Error>),
        for_judge: bool,
    ) -> anyhow::Result<FittedFiles> {
        let JudgedShop { config, dir, task, lexical, translations, is_used } = shop;
        let inputs = FusionInputs { dense: engine, lexical, translations };
        let progress = ProgressDisplay::start("queries", Some(task.queries.len() as u64));
        let fitted = fit_fusion(task, &inputs, is_used, |more| progress.add(more))?;
        progress.finish();
        let is_better = |fitted: &Fitted| fitted.quality.fitted > fitted.quality.default;
        let is_better = fitted.as_ref().is_some_and(is_better);
        let fitted_on = FittedOn {
            model: config.open_encoder()?.fingerprint()?,
            data: self.data.display().to_string(),
            split: self.split.clone(),
            queries: fitted.as_ref().map_or(0, |fitted| fitted.queries),
            quality: fitted.as_ref().map(|fitted| fitted.quality),
            without_translations: fitted.as_ref().and_then(|fitted| fitted.without_translations),
        };
        let fitted = fitted.map(|fitted| fitted.fusion);
        let used = fitted.as_ref().filter(|_| is_better);
        let kept = fitted.as_ref().filter(|_| is_better || for_judge);
        let kept = kept.map(|fusion| fusion.translations.clone()).unwrap_or_default();
        let mut text = describe(&fitted_on, used);
        text += &match pairs {
            (_, Some(error)) => format!("\ntranslations: not used: {error}"),
            (_, None) if kept.is_empty() => "\ntranslations: not used".into(),
            (pairs, None) => format!(
                "\ntranslations: {} pairs of words, learned from {pairs} training pairs\nwrote {}",
                kept.len(),
                dir.join(TRANSLATIONS).display()
            ),
        };
        text += &format!("\nwrote {}", dir.join(FUSION).display());
        let fusion = FittedFusion::new(used.map(|fusion| fusion.weights), fitted_on);
        fusion.save(&kept, dir)?;
        Ok(FittedFiles { fusion, fitted, text })
    }
}

/// Fitted weights as they were written.
struct FittedFiles {
    fusion: FittedFusion,
    /// Even if search uses the default weights; none if too few queries are judged.
    fitted: Option<ModelFusion>,
    /// Description for the terminal.
    text: String,
}

/// A model's folder, and the judgements that are fitted to.
struct JudgedShop<'a> {
    config: &'a Config,
    dir: &'a Path,
    task: &'a Task,
    lexical: Lexical,
    translations: CrossFitted,
    is_used: &'a dyn Fn(&TaskQuery) -> bool,
}

impl JudgedShop<'_> {
    /// Hybrid search as it answers queries without training pairs.
    fn hybrid(&self, engine: Engine, used: Option<ModelFusion>) -> Result<Engine> {
        match used {
            Some(fusion) if !fusion.translations.is_empty() => {
                engine.hybrid_with(self.task, Fusion::Fitted(fusion), |query| self.translations.of(query).clone())
            }
            used => engine.hybrid(self.task, used.map_or_else(Fusion::default, Fusion::Fitted)),
        }
    }

    /// Fits the weight of a relevance model as the reranker, and installs it if it brings something.
    fn install_reranker(&self, judge: &Path, hybrid: &Engine, depth: Option<u32>) -> anyhow::Result<Option<RerankFit>> {
        let Self { config, dir, task, lexical, is_used, .. } = self;
        let scorer = config.open_pair_scorer(judge, config.open_reader()?.item_text())?;
        let progress = ProgressDisplay::start("queries reranked", Some(task.queries.len() as u64));
        let before = RerankFit::of_model(dir)?.map(|fit| fit.depth);
        let depth = depth.map(|depth| depth as usize).or(before).unwrap_or(DEFAULT_DEPTH);
        let fit = fit_reranker(task, (hybrid, lexical), (&scorer, depth), is_used, |more| progress.add(more))?;
        progress.finish();
        match &fit {
            Some(fit) => fit.install(judge, dir)?,
            None => disable_reranker(dir)?,
        }
        Ok(fit)
    }

    /// Calibrates hybrid search with these weights as a judge. `model`: the model's fingerprint.
    fn calibrate(self, model: String, fusion: ModelFusion) -> anyhow::Result<HybridGrading> {
        let Self { config, dir, task, lexical, translations, is_used } = self;
        let weights = fusion.weights;
        let scorer = config.hybrid_scorer(dir, config.open_encoder()?, lexical, fusion)?;
        let progress = ProgressDisplay::start("queries judged", Some(task.queries.len() as u64));
        let pairs = judged_scores(task, (&scorer, &translations), is_used, |more| progress.add(more))?;
        progress.finish();
        let grading = HybridGrading::fit(model, weights, &pairs);
        grading.save(dir)?;
        Ok(grading)
    }
}

fn describe_judge(grading: &HybridGrading, file: &Path) -> String {
    let auc = grading.auc_good.map_or_else(String::new, |auc| format!(": AUC of Good {auc:.3}"));
    format!("\njudge, calibrated on {} judged pairs{auc}\nwrote {}", grading.pairs, file.display())
}

fn describe_reranker(fit: Option<&RerankFit>, dir: &Path) -> String {
    let Some(fit) = fit else {
        return "\nno reranker: it brings nothing, or there are too few judged queries".into();
    };
    let RerankQuality { fused, reranked } = fit.quality;
    format!(
        "\nnDCG@10 on {} queries: fused {:.2}, first {} reranked {:.2} (cross-validated); weight {:.3}\nwrote {}",
        fit.queries,
        100.0 * fused,
        fit.depth,
        100.0 * reranked,
        fit.weight,
        dir.display()
    )
}

fn describe(fitted_on: &FittedOn, fusion: Option<&ModelFusion>) -> String {
    let Some(FitQuality { default, fitted }) = fitted_on.quality else {
        return format!(
            "hybrid search uses the default weights: {MIN_QUERIES} or more queries with a hit above L1 are needed"
        );
    };
    let (default, fitted, queries) = (100.0 * default, 100.0 * fitted, fitted_on.queries);
    let mut text =
        format!("nDCG@10 on {queries} queries: default weights {default:.2}, fitted {fitted:.2} (cross-validated)");
    if let Some(without) = fitted_on.without_translations {
        text += &format!(", without translations {:.2}", 100.0 * without);
    }
    match fusion {
        Some(fusion) => {
            for (name, weight) in fusion.weights.named() {
                text += &format!("\n  {name:<16}{weight:>10.3}");
            }
        }
        None => text += "\nhybrid search uses the default weights: fitted ones are not better",
    }
    text
}

"""BibTeX of what a run stands on: methods, data sets, models and tools.

A report hands the keys of what it really used to `cite`; keys are the names that configurations use, so that a
strategy's or a data set's name is also its citation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from relief_ray.errors import UserError

# How methods are called where they are shown: tables, titles, figures.


# Whose own paper could not be read in full.
RECONSTRUCTED: Mapping[str, str] = MappingProxyType(
    {"fedicu": "FedICU (reconstructed)", "fedicu_table": "FedICU (reconstructed), table"}
)


def shown(label: str) -> str:
    """The name under which a strategy is shown; one that is our reconstruction says so."""
    return RECONSTRUCTED.get(label, label)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One BibTeX entry; `more` holds the fields beyond author, title and year (booktitle, pages, doi, ...)."""

    kind: str
    label: str
    author: str
    title: str
    year: int
    more: Mapping[str, str] = field(default_factory=dict)

    def bibtex(self) -> str:
        """Return the entry as BibTeX, one field a line, the title in double braces so that its capitals survive."""
        fields = {"author": self.author, "title": f"{{{self.title}}}", **self.more, "year": str(self.year)}
        body = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
        return f"@{self.kind}{{{self.label},\n{body}\n}}"


def _paper(label: str, venue: str, year: int, title: str, author: str, **more: str) -> Entry:
    return Entry(
        kind="inproceedings", label=label, author=author, title=title, year=year, more={"booktitle": venue, **more}
    )


def _article(label: str, journal: str, year: int, title: str, author: str, **more: str) -> Entry:
    return Entry(kind="article", label=label, author=author, title=title, year=year, more={"journal": journal, **more})


_METHODS = {
    "fedavg": _paper(
        "mcmahan2017fedavg",
        "International Conference on Artificial Intelligence and Statistics (AISTATS)",
        2017,
        "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        'McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and Ag{\\"u}era y Arcas, Blaise',
    ),
    "fedprox": _paper(
        "li2020fedprox",
        "Proceedings of Machine Learning and Systems (MLSys)",
        2020,
        "Federated Optimization in Heterogeneous Networks",
        "Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet and Smith, Virginia",
    ),
    "fedel": _paper(
        "zhang2025fedel",
        "Advances in Neural Information Processing Systems (NeurIPS)",
        2025,
        "FedEL: Federated Elastic Learning for Heterogeneous Devices",
        "Zhang, Letian and Chen, Bo and Bian, Jieming and Wang, Lei and Xu, Jie",
        eprint="2509.16902",
        archiveprefix="arXiv",
    ),
    "fedicu": _paper(
        "liao2025fedicu",
        "International Conference on Machine Learning (ICML)",
        2025,
        "Splitting with Importance-aware Updating for Heterogeneous Federated Learning with Large Language Models",
        "Liao, Yangxu and Huang, Wenke and Wan, Guancheng and Liang, Jian and Yang, Bin and Ye, Mang",
        volume="267",
        pages="37495--37510",
    ),
    "darkdistill": _paper(
        "qu2025darkdistill",
        "ACM SIGKDD Conference on Knowledge Discovery and Data Mining (KDD)",
        2025,
        "DarkDistill: Difficulty-Aligned Federated Early-Exit Network Training on Heterogeneous Devices",
        "Qu, Lehao and Li, Shuyuan and Zhou, Zimu and Liu, Boyi and Xu, Yi and Tong, Yongxin",
        pages="2374--2385",
    ),
    "harmony": _paper(
        "ouyang2023harmony",
        "International Conference on Mobile Systems, Applications and Services (MobiSys)",
        2023,
        "Harmony: Heterogeneous Multi-Modal Federated Learning through Disentangled Model Training",
        "Ouyang, Xiaomin and Xie, Zhiyuan and Fu, Heming and Cheng, Sitong and Pan, Li and Ling, Neiwen and "
        "Xing, Guoliang and Zhou, Jiayu and Huang, Jianwei",
        doi="10.1145/3581791.3596844",
    ),
    "pilot": _paper(
        "xiong2025pilot",
        "AAAI Conference on Artificial Intelligence",
        2025,
        "Pilot: Building the Federated Multimodal Instruction Tuning Framework",
        "Xiong, Baochen and Yang, Xiaoshan and Song, Yaguang and Wang, Yaowei and Xu, Changsheng",
        doi="10.1609/aaai.v39i20.35476",
    ),
    "fedsa_lora": _paper(
        "guo2025fedsalora",
        "International Conference on Learning Representations (ICLR)",
        2025,
        "Selective Aggregation for Low-Rank Adaptation in Federated Learning",
        "Guo, Pengxin and Zeng, Shuang and Wang, Yanran and Fan, Huijie and Wang, Feifei and Qu, Liangqiong",
    ),
    "helora": _article(
        "fan2025helora",
        "ACM Transactions on Internet Technology",
        2025,
        "HeLoRA: LoRA-heterogeneous Federated Fine-tuning for Foundation Models",
        "Fan, Boyu and Su, Xiang and Tarkoma, Sasu and Hui, Pan",
        volume="25",
        number="2",
        pages="1--22",
        doi="10.1145/3723877",
    ),
    "fedlease": _paper(
        "wang2025fedlease",
        "Advances in Neural Information Processing Systems (NeurIPS)",
        2025,
        "Adaptive LoRA Experts Allocation and Selection for Federated Fine-Tuning",
        "Wang, Lei and Bian, Jieming and Zhang, Letian and Xu, Jie",
        eprint="2509.15087",
        archiveprefix="arXiv",
    ),
    "relief": Entry(
        kind="misc",
        label="wu2026relief",
        author="Wu, Beining and Ding, Zihao and Huang, Jun",
        title="RELIEF: Turning Missing Modalities into Training Acceleration for Federated Learning on "
        "Heterogeneous IoT Edge",
        year=2026,
        more={"eprint": "2604.04243", "archiveprefix": "arXiv"},
    ),
}

_DATA = {
    "pamap2": _paper(
        "reiss2012pamap2",
        "International Symposium on Wearable Computers (ISWC)",
        2012,
        "Introducing a New Benchmarked Dataset for Activity Monitoring",
        "Reiss, Attila and Stricker, Didier",
        pages="108--109",
    ),
    "mhealth": _paper(
        "banos2014mhealth",
        "Ambient Assisted Living and Daily Activities (IWAAL)",
        2014,
        "mHealthDroid: A Novel Framework for Agile Development of Mobile Health Applications",
        "Banos, Oresti and Garcia, Rafael and Holgado-Terriza, Juan A. and Damas, Miguel and Pomares, Hector and "
        "Rojas, Ignacio and Saez, Alejandro and Villalonga, Claudia",
    ),
    "dsa": _article(
        "altun2010dsa",
        "Pattern Recognition",
        2010,
        "Comparative study on classifying human activities with miniature inertial and magnetic sensors",
        "Altun, Kerem and Barshan, Billur and Tun{\\c{c}}el, Orkun",
        volume="43",
        number="10",
        pages="3605--3620",
    ),
    "dsa_units": _article(
        "barshan2014dsa",
        "The Computer Journal",
        2014,
        "Recognizing daily and sports activities in two open source machine learning environments using "
        "body-worn sensor units",
        'Barshan, Billur and Y{\\"u}ksek, Murat Cihan',
        volume="57",
        number="11",
        pages="1649--1667",
    ),
}

_MODELS = {
    "moment": _paper(
        "goswami2024moment",
        "International Conference on Machine Learning (ICML)",
        2024,
        "MOMENT: A Family of Open Time-series Foundation Models",
        "Goswami, Mononito and Szafer, Konrad and Choudhry, Arjun and Cai, Yifu and Li, Shuo and Dubrawski, Artur",
    ),
    "lora": _paper(
        "hu2022lora",
        "International Conference on Learning Representations (ICLR)",
        2022,
        "LoRA: Low-Rank Adaptation of Large Language Models",
        "Hu, Edward J. and Shen, Yelong and Wallis, Phillip and Allen-Zhu, Zeyuan and Li, Yuanzhi and Wang, Shean and "
        "Wang, Lu and Chen, Weizhu",
    ),
}

_TOOLS = {
    "ray": _paper(
        "moritz2018ray",
        "USENIX Symposium on Operating Systems Design and Implementation (OSDI)",
        2018,
        "Ray: A Distributed Framework for Emerging AI Applications",
        "Moritz, Philipp and Nishihara, Robert and Wang, Stephanie and Tumanov, Alexey and Liaw, Richard and others",
        pages="561--577",
    ),
    "mlflow": _article(
        "zaharia2018mlflow",
        "IEEE Data Engineering Bulletin",
        2018,
        "Accelerating the Machine Learning Lifecycle with MLflow",
        "Zaharia, Matei and Chen, Andrew and Davidson, Aaron and Ghodsi, Ali and Hong, Sue Ann and others",
        volume="41",
        number="4",
        pages="39--45",
    ),
    "pytorch": _paper(
        "paszke2019pytorch",
        "Advances in Neural Information Processing Systems (NeurIPS)",
        2019,
        "PyTorch: An Imperative Style, High-Performance Deep Learning Library",
        "Paszke, Adam and Gross, Sam and Massa, Francisco and Lerer, Adam and Bradbury, James and others",
    ),
}

ENTRIES: Mapping[str, Entry] = MappingProxyType({**_METHODS, **_DATA, **_MODELS, **_TOOLS})

"""Every entry by its key: the methods' and data sets' configuration names, `moment`, `lora` and the tools."""

# The excerpt and the partial copy are cited as what they were taken from; DSA has two articles.
_PARTS = {"dsa": ("dsa", "dsa_units"), "dsa_mini": ("dsa", "dsa_units"), "mhealth_partial": ("mhealth",)}


def cite(keys: Iterable[str]) -> str:
    """Return the BibTeX of the keys, each entry once, in the order first asked for.

    Hyphens and capitals do not matter (`FedSA-LoRA` is `fedsa_lora`).

    Raises:
        UserError: a key names no entry.
    """
    wanted = [part for key in keys for part in _expand(key)]
    return "\n\n".join(ENTRIES[key].bibtex() for key in dict.fromkeys(wanted))


def _expand(key: str) -> tuple[str, ...]:
    name = key.lower().replace("-", "_")
    parts = _PARTS.get(name, (name,))
    if parts[0] not in ENTRIES:
        raise UserError(f"citation: found {key!r}, expected one of {', '.join(sorted(ENTRIES))}")
    return parts

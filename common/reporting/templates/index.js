(() => {
  const list = document.getElementById("papers");
  const papers = [...list.querySelectorAll(".paper")];
  const search = document.getElementById("search");
  const verdict = document.getElementById("verdict");
  const sort = document.getElementById("sort");
  const shown = document.getElementById("shown");
  const text = new Map(papers.map((p) => [p, p.textContent.toLowerCase()]));

  function update() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const paper of papers) {
      const claims = [...paper.querySelectorAll(".claim")];
      const wanted = claims.filter((c) => !verdict.value || c.dataset.verdict === verdict.value);
      for (const claim of claims) claim.hidden = !wanted.includes(claim);
      const matches = words.every((w) => text.get(paper).includes(w));
      paper.hidden = !matches || (verdict.value !== "" && wanted.length === 0);
      count += !paper.hidden;
    }
    shown.textContent = `${count} paper${count === 1 ? "" : "s"}`;
    const key = sort.value;
    const order = key === "name"
      ? (a, b) => a.dataset.name.localeCompare(b.dataset.name)
      : (a, b) => Number(b.dataset[key]) - Number(a.dataset[key]) || a.dataset.name.localeCompare(b.dataset.name);
    list.append(...papers.slice().sort(order));
  }

  for (const control of [search, verdict, sort]) control.addEventListener("input", update);
  document.querySelector("form.controls").addEventListener("submit", (e) => e.preventDefault());
})();

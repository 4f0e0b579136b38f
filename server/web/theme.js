// The colours, before anything is drawn: no flash of the others. Not a module, as those wait for the document.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const chosen = localStorage.getItem("octavo.theme");
    document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
  };
  apply();
  dark.addEventListener("change", apply);
  addEventListener("octavo-theme", apply); // the page has a button
})();
